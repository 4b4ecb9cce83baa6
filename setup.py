# SPDX-License-Identifier: Apache-2.0
"""Build the extension kcodec._fast. The metadata of the package is in pyproject.toml.

Environment variables:
KCODEC_DEBUG=1                      Compile without optimization, with symbols and assertions.
KCODEC_SANITIZE=address,undefined   Compile with these sanitizers, as for the option -fsanitize= of gcc.
KCODEC_WERROR=1                     Treat warnings of the C compiler as errors.
KCODEC_EXTENSION=0                  Do not build the extension, which has been built in place before.

All sources are compiled in parallel with -O3. For the C code that Cython generates, -O1 would halve the build time and
-O2 reduce it by a quarter, but reading rows of Python objects and writing small messages would be 3 to 13 % slower.

The C code requires gcc or clang. On Windows it is compiled by clang-cl, which Visual Studio contains, instead of cl.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = "src/kcodec"
DEBUG = os.environ.get("KCODEC_DEBUG") == "1"
PARTS = Path(HERE, "_fast")
SANITIZE = os.environ.get("KCODEC_SANITIZE", "")


class Build(build_ext):
    """build_ext that compiles in parallel, and with clang-cl instead of Visual Studio's own compiler."""

    def build_extensions(self):
        """Build the extension with compile_in_parallel or clang-cl."""
        if self.compiler.compiler_type == "unix":
            self.compiler.compile = self.compile_in_parallel
        if self.compiler.compiler_type == "msvc":
            clang = shutil.which("clang-cl")
            if clang is None:
                sys.exit("kcodec needs clang-cl: install the component 'C++ Clang tools for Windows' of Visual Studio")
            self.compiler.initialize()
            self.compiler.cc = clang
        super().build_extensions()

    def compile_in_parallel(
        self,
        sources,
        output_dir=None,
        macros=None,
        include_dirs=None,
        debug=0,
        extra_preargs=None,
        extra_postargs=None,
        depends=None,
    ):
        """Compile like distutils.ccompiler.CCompiler.compile, with one thread per processor. The generated C is
        first."""
        compiler = self.compiler
        macros, objects, extra_postargs, pp_opts, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        cc_args = compiler._get_cc_args(pp_opts, debug, extra_preargs)

        def compile_one(name):
            source, extension = build[name]
            compiler._compile(name, source, extension, cc_args, extra_postargs, pp_opts)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(compile_one, sorted(build, key=lambda name: Path(build[name][0]).name != "_fast.c")))
        return objects


if sys.platform == "win32":
    flags, link, libraries = ["/std:c11", "/O2", "/W3"], [], []
else:
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-pthread"]
    # -g0: Python's own flags often request symbols, which double the build time and make the module ten times as large.
    flags += ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
    link = ["-pthread"]
    libraries = ["dl"] if sys.platform == "linux" else []
if SANITIZE:
    flags += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-g", "-DKCODEC_EXACT_BUFFERS"]
    link += [f"-fsanitize={SANITIZE}"]
if os.environ.get("KCODEC_WERROR") == "1":
    flags += ["-Werror"]

extension = Extension(
    "kcodec._fast",
    sources=[f"{HERE}/_fast.pyx", *sorted(map(str, PARTS.rglob("*.c")))],
    depends=["setup.py", *sorted(map(str, [*PARTS.rglob("*.pxi"), *PARTS.rglob("*.h")]))],
    include_dirs=[HERE, *sorted({str(path.parent) for path in PARTS.rglob("*.h")})],
    libraries=libraries,
    extra_compile_args=flags,
    extra_link_args=link,
)

setup(
    cmdclass={"build_ext": Build},
    ext_modules=[]
    if os.environ.get("KCODEC_EXTENSION") == "0"
    else cythonize(
        [extension],
        build_dir="build/cython",
        include_path=[HERE],
        compiler_directives={"language_level": 3},
    ),
)
