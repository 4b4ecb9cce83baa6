# SPDX-License-Identifier: Apache-2.0
"""The direction of imports inside kcodec, and what may be imported at all, read from the source without running it.

A module may import those of its row in MAY_IMPORT; what the core and the pure layers may not touch is in IMPURE; what
is imported late, so that `import kcodec` stays quick and light, is in LATE. Imports under TYPE_CHECKING are free.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

BASE = {"arguments", "errors", "constants", "limits", "offsets"}
CORE = BASE | {"_fast"}
DATA = CORE | {"text", "batch", "compression", "control", "arrow", "rewrite", "validation", "compaction"}
WIRE = CORE | {"protocol"}
LOG = DATA | WIRE | {"log"}
FLOWS = WIRE | {"txn", "consumer", "rewrite"}
CLIENT = DATA | FLOWS | {"client"}
BROKER = LOG | WIRE | {"broker"}
TOP = CLIENT | BROKER | {"kcodec", "compat", "plot"}
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    "_fast": CORE | {"_header_table"},
    "_header_table": CORE,
    **dict.fromkeys(DATA - CORE, DATA),
    "log": LOG,
    "protocol": WIRE,
    "txn": FLOWS - {"consumer"},
    "consumer": FLOWS,
    "client": CLIENT,
    "broker": BROKER,
    "plot": LOG,
    "compat": DATA | {"kcodec", "compat"},
    "testing": TOP | {"testing"},
    "spark": TOP | {"spark"},
    "cli": TOP | {"cli"},
    "__main__": TOP | {"cli"},
    "kcodec": TOP | {"testing"},
}
PURE = {"_fast", "batch", "protocol", "txn", "consumer"}
IMPURE = {"socket", "ssl", "asyncio", "time", "threading"}
LATE = {"numpy", "crc32c", "pyarrow", "pyspark", "pandas", "aiokafka", "kafka", "botocore"}
# What the core may import where it is used: the packages that decompress, and numpy for to_numpy.
LATE_IN_CORE = {"zstandard", "isal", "lz4", "numpy"}
PUBLIC_ONLY = {"spark", "cli"}
# Modules whose classes derive from another package's, loaded only once it is certain to be there.
EARLY = {
    ("kcodec.spark.source", "pyspark"),
    ("kcodec.compat._aiokafka_faces", "aiokafka"),
    ("kcodec.compat._kafka_python_faces", "kafka"),
}

Import = tuple[str, bool]  # the module named in full, and whether it is imported as soon as its importer is


def imports(tree: ast.AST, package: list[str], early: bool = True) -> Iterator[Import]:
    """Every import below `tree`, relative ones resolved against `package`; `from kcodec import log` is kcodec.log."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, early) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "kcodec" else [module]
            yield from ((name, early) for name in names)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, package, early and not inside)


def cython_imports(text: str) -> Iterator[Import]:
    """The same for a Cython file, by its import lines; `cimport` is C's business and not meant."""
    for indent, module in re.findall(r"^([ \t]*)(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]", text, re.MULTILINE):
        if module:
            yield module, not indent
    for indent, names in re.findall(r"^([ \t]*)import[ \t]+([\w., \t]+)", text, re.MULTILINE):
        yield from ((name.split()[0], not indent) for name in names.split(","))


def faults(name: str, found: Iterator[Import]) -> list[str]:
    """What the imports of the module `name` (kcodec.log.segment) do against the rules."""
    parts = name.split(".")
    layer = parts[1] if len(parts) > 1 else parts[0]
    if layer not in MAY_IMPORT:
        return [f"{name} has no row in MAY_IMPORT"]
    wrong = []
    for module, early in found:
        top, *rest = module.split(".")
        inner = rest[0] if rest and rest[0] in MAY_IMPORT else "kcodec"
        if top == "kcodec" and inner not in MAY_IMPORT[layer] | {layer}:
            wrong.append(f"{name} imports {module}, which stands above it")
        if top == "kcodec" and layer in PUBLIC_ONLY and any(part.startswith("_") for part in rest):
            wrong.append(f"{name} imports {module}, which is not public")
        late_in_core = layer == "_fast" and top in LATE_IN_CORE and not early
        foreign = top not in sys.stdlib_module_names and top != "kcodec"
        if layer in PURE and not late_in_core and (top in IMPURE or foreign):
            wrong.append(f"{name} imports {module}, which is not pure")
        if early and top in LATE and (name, top) not in EARLY:
            wrong.append(f"{name} imports {module} at its top, not where it is used")
    return wrong


def module_name(path: Path) -> str:
    """kcodec.log for src/kcodec/log/__init__.py, kcodec._fast for a part of the core."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if path.suffix in {".pyx", ".pxi"}:
        return "kcodec._fast"
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def check_file(path: Path) -> list[str]:
    """The faults of one file."""
    text, name = path.read_text(encoding="utf-8"), module_name(path)
    if path.suffix != ".py":
        return faults(name, cython_imports(text))
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    return faults(name, imports(ast.parse(text), package))


FILES = sorted(path for pattern in ("*.py", "*.pyx", "*.pxi") for path in (SOURCE / "kcodec").rglob(pattern))


def test_imports_point_downwards_and_stay_light() -> None:
    assert FILES
    assert [fault for path in FILES for fault in check_file(path)] == []


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("kcodec.batch", "import kcodec.log.segment", "above"),
        ("kcodec.batch", "from .log import segment", "above"),
        ("kcodec.batch", "def f():\n    from kcodec import spark", "above"),
        ("kcodec.protocol.frame", "from kcodec.batch import Record", "above"),
        ("kcodec.protocol.frame", "from ..batch import Record", "above"),
        ("kcodec.protocol.messages.records", "from kcodec.log import internal_record", "above"),
        ("kcodec.errors", "from kcodec import decode", "above"),
        ("kcodec.batch", "def f():\n    import time", "not pure"),
        ("kcodec.batch", "def f():\n    import zstandard", "not pure"),
        ("kcodec.arrow", "import pyarrow as pa", "at its top"),
        ("kcodec.arrow", "try:\n    from pyarrow import lib\nexcept ImportError:\n    lib = None", "at its top"),
        ("kcodec.spark.ranges", "import pyspark.sql", "at its top"),
        ("kcodec.spark.source", "import numpy", "at its top"),
        ("kcodec.cli.render", "from kcodec._fast import scan", "not public"),
        ("kcodec.attic", "", "no row"),
    ],
)
def test_a_violation_is_found(name: str, source: str, fault: str) -> None:
    wrong = faults(name, imports(ast.parse(source), name.split(".")[:-1]))
    assert len(wrong) == 1
    assert fault in wrong[0]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("kcodec.arrow", "def f():\n    import pyarrow"),
        ("kcodec.arrow", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow"),
        ("kcodec.spark.source", "from pyspark.sql.datasource import DataSource\nfrom kcodec import decode"),
        ("kcodec.log.segment", "from kcodec.batch import Record\nfrom . import partition"),
    ],
)
def test_what_is_allowed_is_not_found(name: str, source: str) -> None:
    assert faults(name, imports(ast.parse(source), name.split(".")[:-1])) == []


@pytest.mark.parametrize(
    "source", ["import zstandard\n", "def f():\n    from time import sleep\n", "import os, socket\n"]
)
def test_a_violation_in_cython_is_found(source: str) -> None:
    assert len(faults("kcodec._fast", cython_imports(source))) == 1


def test_cython_may_use_the_standard_library_and_c() -> None:
    source = "cimport cython\nfrom libc.string cimport memcpy\nimport sys\nfrom kcodec.errors import KcodecError\n"
    assert faults("kcodec._fast", cython_imports(source)) == []
