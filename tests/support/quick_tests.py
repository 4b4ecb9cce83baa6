# SPDX-License-Identifier: Apache-2.0
"""`make quick`: with KCODEC_QUICK=1, tests that need Java, Spark or PostgreSQL, or take long, are not selected.

A test needs Java if it has one of the fixtures below, or if its module (or a helper that it imports) starts a broker or
imports one of these modules.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
FIXTURES = {
    *("apache_kafka", "apache_kafka_factory", "guarded_kafka", "java_home", "spark", "transaction_cluster"),
    "postgres_server",
}
MODULES = {"java_judge", "pyspark", "kcodec.spark", "kcodec.testing.java", "kcodec.testing.jars", "psycopg"}
STARTS_A_BROKER = {"ApacheKafka", "Node", "find_java"}
#: Modules that take long: searches for counterexamples, tests of memory, of packages and of processes that end.
LONG = {
    *("test_arrow_memory", "test_bombs", "test_client_clock", "test_client_exit", "test_consumer_membership_property"),
    *("test_held_back", "test_producer_causes", "test_session_interrupted"),
    *("test_decode_property", "test_encode_property", "test_fuzz_corpus", "test_log_follow_random", "test_memory"),
    *("test_memory_cycles", "test_packaging"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what `make quick` leaves out."""
    if os.environ.get("KCODEC_QUICK") != "1":
        return
    left_out = [item for item in items if not is_quick(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_quick(item)]


def is_quick(item: pytest.Item) -> bool:
    """Whether a test needs neither Java nor Spark nor much time."""
    if FIXTURES & set(getattr(item, "fixturenames", ())):
        return False
    return TESTS not in item.path.parents or (item.path.stem not in LONG and not needs_java(item.path.stem))


def needs_java(name: str) -> bool:
    """Whether a module of the tests, or one that it imports, starts a broker or imports what does."""
    seen, todo = set[str](), [name]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            starts, imported = facts(module)
            if starts or imported & MODULES:
                return True
            todo += imported
    return False


@cache
def facts(name: str) -> tuple[bool, frozenset[str]]:
    """Whether a module of the tests starts a broker itself, and the modules that it imports."""
    path = next(TESTS.rglob(f"{name}.py"), None)
    if path is None:
        return False, frozenset()
    starts, imported = False, set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            starts = starts or node.func.id in STARTS_A_BROKER
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
    return starts, frozenset(imported)
