# SPDX-License-Identifier: Apache-2.0
"""Build the extension kcodec._fast, and nothing else: the metadata is in pyproject.toml.

Switches, all environment variables:
KCODEC_DEBUG=1                      no optimisation, symbols, assertions
KCODEC_SANITIZE=address,undefined   what gcc's -fsanitize= takes
KCODEC_WERROR=1                     a warning of the C compiler ends the build
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

HERE = "src/kcodec"
DEBUG = os.environ.get("KCODEC_DEBUG") == "1"
PARTS = Path(HERE, "_fast")
SANITIZE = os.environ.get("KCODEC_SANITIZE", "")

flags = ["-std=gnu11", "-Wall", "-Wextra", "-pthread"]
flags += ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3"]
link = ["-pthread"]
if SANITIZE:
    flags += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-g"]
    link += [f"-fsanitize={SANITIZE}"]
if os.environ.get("KCODEC_WERROR") == "1":
    flags += ["-Werror"]

extension = Extension(
    "kcodec._fast",
    sources=[f"{HERE}/_fast.pyx", *sorted(map(str, PARTS.glob("*.c")))],
    depends=["setup.py", *sorted(map(str, [*PARTS.glob("*.pxi"), *PARTS.glob("*.h")]))],
    include_dirs=[HERE],
    libraries=["pthread", "dl"],
    extra_compile_args=flags,
    extra_link_args=link,
)

setup(
    ext_modules=cythonize(
        [extension],
        build_dir="build/cython",
        include_path=[HERE],
        compiler_directives={"language_level": 3},
    )
)
