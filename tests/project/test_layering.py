# SPDX-License-Identifier: Apache-2.0
"""The direction of imports inside kcodec, and what may be imported at all, read from the source without running it.

MAY_IMPORT names, for each package, the packages that it may import; PUBLIC lists the modules that `cli`, `spark`,
`testing`, `compat`, `observe` and `ray` may import. Packages without I/O must not import what is in IMPURE, and what is
in LATE is imported where it is used, so that `import kcodec` stays quick. Imports under TYPE_CHECKING count for the
direction, and not for what is imported late. `tools/structure.py` reads the imports, and finds circles of modules.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator

import pytest
from structure import SOURCE, Import, circles, cython_imports, imports, imports_of, module_name, source_files

GROUND = {
    *("arguments", "errors", "constants", "end_limits", "integers", "java_properties", "limits", "offsets", "options"),
    *("flow", "quantities", "timestamps", "_lazy"),
}
CORE = GROUND | {"_fast"}
RECORD = CORE | {"record"}
WIRE = CORE | {"protocol"}
SECURITY = WIRE | {"security"}
CLUSTER = WIRE | {"cluster"}
NETWORK = SECURITY | CLUSTER | {"network"}
# The options of flows extend those of every client.
OPTIONS = {"security", "network"}
PRODUCER = CLUSTER | RECORD | OPTIONS | {"producer"}
TRANSACTIONS = PRODUCER | {"transactions"}
CONSUMER = CLUSTER | RECORD | OPTIONS | {"consumer"}
SESSION = TRANSACTIONS | CONSUMER | {"session"}
ADMIN = CONSUMER | {"admin"}
READING = ADMIN | {"reading"}
CLIENT = SESSION | READING | NETWORK | {"client"}
LOG = RECORD | WIRE | {"text", "log"}
BROKER = LOG | SECURITY | {"broker"}
MAY_IMPORT = {
    **dict.fromkeys(GROUND, GROUND),
    "_fast": CORE,
    "text": CORE | {"text"},
    "record": RECORD | {"protocol"},  # its error codes
    "protocol": WIRE,
    "log": LOG,
    "security": SECURITY,
    "cluster": CLUSTER,
    # network/client.py puts scheduler, connections and cluster metadata together.
    "network": NETWORK,
    "producer": PRODUCER,
    "transactions": TRANSACTIONS,
    "consumer": CONSUMER,
    "session": SESSION,
    "admin": ADMIN,
    "reading": READING,
    "client": CLIENT,
    # Like `client` on top of the others, and without them: the other side of the wire.
    "broker": BROKER,
    "kcodec": CLIENT | LOG,
    "__main__": {"cli"},
}
# `kcodec` itself, for its public names.
FACADE = {"client", "reading"}
# What the packages on top may import, by name: public modules, and the values and helpers that they share with kcodec.
PUBLIC = {
    "kcodec",
    "kcodec._lazy",
    "kcodec.admin.brokers",
    "kcodec.admin.delegation_tokens",
    "kcodec.admin.groups",
    "kcodec.admin.open_transactions",
    "kcodec.admin.quotas",
    "kcodec.admin.security",
    "kcodec.admin.transactions",
    "kcodec.admin.values",
    "kcodec.arguments",
    "kcodec.broker",
    "kcodec.client",
    "kcodec.client.aio",
    "kcodec.client.properties",
    "kcodec.client.range_sample",
    "kcodec.client.renewed_metadata",
    "kcodec.cluster.retry_driver",
    "kcodec.constants",
    "kcodec.consumer.lag",
    "kcodec.errors",
    "kcodec.integers",
    "kcodec.java_properties",
    "kcodec.limits",
    "kcodec.log",
    "kcodec.log.check",
    "kcodec.log.chunks",
    "kcodec.log.growth",
    "kcodec.log.parallel",
    "kcodec.log.salvage",
    "kcodec.log.seek",
    "kcodec.log.segment",
    "kcodec.log.splits",
    "kcodec.log.windows",
    "kcodec.offsets",
    "kcodec.producer.options",
    "kcodec.producer.tables",
    "kcodec.protocol.error_codes",
    "kcodec.protocol.frame",
    "kcodec.protocol.messages",
    "kcodec.protocol.messages.metadata",
    "kcodec.protocol.schema",
    "kcodec.quantities",
    "kcodec.reading.options",
    "kcodec.security",
    "kcodec.security.tls",
    "kcodec.text",
    "kcodec.timestamps",
    "kcodec.transactions.handle",
}
ON_TOP = {"cli", "spark", "testing", "compat", "observe", "ray"}
# Of the compiled core, kcodec.compat alone uses more than its public names.
CORE_USERS = {"compat", "cli"}
PURE = {
    *("_fast", "flow", "protocol", "cluster", "producer", "transactions", "consumer", "session", "reading", "admin"),
}
# Modules without I/O that hand tables to Arrow and predicates to polars, where they are used.
USE_TABLES = {"kcodec.producer.tables", "kcodec.reading.predicate"}
TABLES = {"numpy", "pyarrow", "polars"}
# Circles of packages that stay. errors names the type of the records that an error carries along, for type checkers;
# the core imports record.header_table where it is used.
EXPLAINED = {("errors", "_fast"), ("_fast", "record")}
IMPURE = {"socket", "ssl", "asyncio", "time", "threading"}
LATE = {"numpy", "crc32c", "pyarrow", "pyspark", "pandas", "aiokafka", "kafka", "botocore"} | {
    *("prometheus_client", "opentelemetry", "confluent_kafka"),
}
# What the core may import where it is used: the packages that decompress, and numpy for to_numpy.
LATE_IN_CORE = {"zstandard", "isal", "lz4", "numpy"}
# Modules whose classes derive from another package's, imported only once it is certain to be there.
EARLY = {
    ("kcodec.spark.limited_readers", "pyspark"),
    ("kcodec.spark.source", "pyspark"),
    ("kcodec.spark.writers", "pyspark"),
    ("kcodec.spark.stream_readers", "pyspark"),
    ("kcodec.spark.batch_readers", "pyspark"),
    ("kcodec.compat._aiokafka_classes", "aiokafka"),
    ("kcodec.compat._kafka_python_classes", "kafka"),
    *(
        (f"kcodec.compat._aiokafka_{part}", "aiokafka")
        for part in ("admin", "cluster", "consumer", "errors", "options", "producer", "records", "served")
    ),
    *(
        (f"kcodec.compat._confluent_{part}", "confluent_kafka")
        for part in (
            *("admin", "admin_values", "checks", "cluster", "consumer", "errors", "events", "options", "permissions"),
            *("feeding", "messages", "places", "problems", "producer", "topics"),
        )
    ),
}


def faults(name: str, found: Iterator[Import]) -> list[str]:
    """What the imports of the module `name` (kcodec.log.segment) do against the rules."""
    parts = name.split(".")
    layer = parts[1] if len(parts) > 1 else parts[0]
    if layer not in MAY_IMPORT and layer not in ON_TOP:
        return [f"{name} has no row in MAY_IMPORT"]
    allowed = MAY_IMPORT.get(layer, set()) | ({"kcodec"} if layer in FACADE else set())
    wrong = []
    public = ((one.inner if one.inner in PUBLIC else one.module, one) for one in found)
    for module, early, typing in dict.fromkeys((module, one.is_early, one.is_typing) for module, one in public):
        top, *rest = module.split(".")
        inner = rest[0] if rest and (rest[0] in MAY_IMPORT or rest[0] in ON_TOP) else "kcodec"
        if top == "kcodec" and inner != layer:
            if layer in ON_TOP:
                is_core = inner in {"_fast", "_lazy"} and layer in CORE_USERS
                if inner != "kcodec" and module not in PUBLIC and not is_core:
                    wrong.append(f"{name} imports {module}, which is not in PUBLIC")
            elif not (inner in allowed or (layer, inner) in EXPLAINED):
                wrong.append(f"{name} imports {module}, which is above it")
        if typing:
            continue
        late_in_core = layer == "_fast" and top in LATE_IN_CORE and not early
        late_in_core |= name in USE_TABLES and top in TABLES and not early
        foreign = top not in sys.stdlib_module_names and top != "kcodec"
        if layer in PURE and not late_in_core and (top in IMPURE or foreign):
            wrong.append(f"{name} imports {module}, which is not pure")
        if early and top in LATE and (name, top) not in EARLY:
            wrong.append(f"{name} imports {module} at its top, not where it is used")
    return wrong


FILES = source_files("*.py", "*.pyx", "*.pxi")


def test_imports_point_downwards_and_stay_light() -> None:
    assert FILES
    assert [fault for path in FILES for fault in faults(module_name(path), imports_of(path))] == []


def test_every_package_of_the_rules_exists() -> None:
    """A row for a package that is gone would hide that nothing is checked there."""
    there = {path.stem if path.is_file() else path.name for path in (SOURCE / "kcodec").iterdir()}
    assert {*MAY_IMPORT, *ON_TOP} - {"kcodec"} <= there
    modules = {module_name(path) for path in FILES}
    assert modules >= PUBLIC


def test_packages_do_not_import_each_other_in_circles() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        parts = module_name(path).split(".")
        layer = parts[1] if len(parts) > 1 else parts[0]
        for found in imports_of(path):
            top, *rest = found.module.split(".")
            if top == "kcodec" and rest and rest[0] in MAY_IMPORT and rest[0] != layer:
                graph[layer].add(rest[0])
    for package, other in EXPLAINED:
        graph[package].remove(other)
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("kcodec.record.rewrite", "import kcodec.log.segment", "above"),
        ("kcodec.record.rewrite", "from ..log import segment", "above"),
        ("kcodec.record.rewrite", "def f():\n    from kcodec import spark", "above"),
        ("kcodec.protocol.frame", "from kcodec.network.options import ClientConfig", "above"),
        ("kcodec.protocol.messages.records", "from kcodec.log import internal_record", "above"),
        ("kcodec.protocol.frame", "if TYPE_CHECKING:\n    from kcodec.network.options import ClientConfig", "above"),
        ("kcodec.producer.sender", "from kcodec.transactions.manager import TransactionManager", "above"),
        ("kcodec.errors", "from kcodec import decode", "above"),
        ("kcodec.producer.sender", "def f():\n    import time", "not pure"),
        ("kcodec.producer.batch", "def f():\n    import zstandard", "not pure"),
        ("kcodec.log.storage", "import pyarrow as pa", "at its top"),
        ("kcodec.log.storage", "try:\n    from pyarrow import lib\nexcept ImportError:\n    lib = None", "at its top"),
        ("kcodec.spark.file_ranges", "import pyspark.sql", "at its top"),
        ("kcodec.spark.source", "import numpy", "at its top"),
        ("kcodec.spark.source", "from kcodec._fast import scan", "not in PUBLIC"),
        ("kcodec.cli.render", "from kcodec.network.options import ClientConfig", "not in PUBLIC"),
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
        ("kcodec.producer.tables", "def f():\n    import pyarrow"),
        ("kcodec.log.storage", "def f():\n    import pyarrow"),
        ("kcodec.log.storage", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow"),
        ("kcodec.spark.source", "from pyspark.sql.datasource import DataSource\nfrom kcodec import decode"),
        ("kcodec.log.segment", "from kcodec.record.rewrite import set_base_offset\nfrom . import partition"),
        ("kcodec.cli.consume", "from kcodec.client import Consumer"),
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
