# SPDX-License-Identifier: Apache-2.0
"""Build the extension kcodec._fast, and nothing else: the metadata is in pyproject.toml.

Switches, all environment variables:
KCODEC_DEBUG=1                      no optimisation, symbols, assertions
KCODEC_SANITIZE=address,undefined   what gcc's -fsanitize= takes
KCODEC_WERROR=1                     a warning of the C compiler ends the build

The C is written for gcc and clang. On Windows clang-cl, which Visual Studio brings along, takes the place of cl.
"""

import os
import shutil
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = "src/kcodec"
DEBUG = os.environ.get("KCODEC_DEBUG") == "1"
PARTS = Path(HERE, "_fast")
SANITIZE = os.environ.get("KCODEC_SANITIZE", "")


class Build(build_ext):
    """build_ext, with clang-cl where Visual Studio's own compiler would be taken."""

    def build_extensions(self):
        """As setuptools does it."""
        if self.compiler.compiler_type == "msvc":
            clang = shutil.which("clang-cl")
            if clang is None:
                sys.exit("kcodec needs clang-cl: install the component 'C++ Clang tools for Windows' of Visual Studio")
            self.compiler.initialize()
            self.compiler.cc = clang
        super().build_extensions()


if sys.platform == "win32":
    flags, link, libraries = ["/std:c11", "/O2", "/W3"], [], []
else:
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-pthread"]
    flags += ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3"]
    link = ["-pthread"]
    libraries = ["dl"] if sys.platform == "linux" else []
if SANITIZE:
    flags += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-g", "-DKCODEC_EXACT_BUFFERS"]
    link += [f"-fsanitize={SANITIZE}"]
if os.environ.get("KCODEC_WERROR") == "1":
    flags += ["-Werror"]

extension = Extension(
    "kcodec._fast",
    sources=[f"{HERE}/_fast.pyx", *sorted(map(str, PARTS.glob("*.c")))],
    depends=["setup.py", *sorted(map(str, [*PARTS.glob("*.pxi"), *PARTS.glob("*.h")]))],
    include_dirs=[HERE],
    libraries=libraries,
    extra_compile_args=flags,
    extra_link_args=link,
)

setup(
    cmdclass={"build_ext": Build},
    ext_modules=cythonize(
        [extension],
        build_dir="build/cython",
        include_path=[HERE],
        compiler_directives={"language_level": 3},
    ),
)
