# SPDX-License-Identifier: Apache-2.0
"""Print one line if something is missing on this machine for building kcodec, and nothing otherwise.

The Makefile runs this program first, with the machine's own python3. A Python that is too old for kcodec must be able
to run it as well, so it has annotations in quotes, no f-strings and imports from the standard library only.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

PROBE = "#include <Python.h>\n#include <pthread.h>\nint main(void) { return PY_MAJOR_VERSION - 3; }\n"


def c_compiler() -> "list[str] | None":
    """Return the compiler that will build the extension: $CC, else the one that built Python, else cc."""
    for candidate in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        if candidate and shutil.which(candidate.split()[0]):
            return candidate.split()
    return None


def compiles(compiler: "list[str]", source: str) -> bool:
    """Return whether `compiler` compiles `source` with Python's headers on its path."""
    folder = tempfile.mkdtemp()
    try:
        path = os.path.join(folder, "probe.c")
        with open(path, "w") as file:
            file.write(source)
        include = sysconfig.get_paths()["include"]
        command = [*compiler, "-I" + include, "-c", path, "-o", os.path.join(folder, "probe.o")]
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    finally:
        shutil.rmtree(folder)


def missing() -> "str | None":
    """Return one line about what to install, or None."""
    version = "%d.%d" % sys.version_info[:2]
    if sys.version_info < (3, 11):
        return (
            "kcodec needs Python 3.11 or newer, this is %s: install one and say `make PYTHON=python3.12 ...`" % version
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "this Python lacks the venv module: install python%s-venv (Debian, Ubuntu) or a full Python" % version
    compiler = c_compiler()
    if compiler is None or not compiles(compiler, "#include <stdio.h>\nint main(void) { return 0; }\n"):
        return "no working C compiler: install gcc and the C library's headers (Debian, Ubuntu: build-essential)"
    if not compiles(compiler, PROBE):
        return "Python.h is missing: install python%s-dev (Debian, Ubuntu) or python3-devel (Fedora)" % version
    return None


if __name__ == "__main__":
    line = missing()
    if line:
        sys.exit(line)
