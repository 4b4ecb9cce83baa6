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

TESTS = Path(__file__).resolve().parent
FIXTURES = {
    *("apache_kafka", "apache_kafka_factory", "guarded_kafka", "java_home", "spark", "transaction_cluster"),
    "postgres",
}
MODULES = {"java_judge", "pyspark", "kcodec.spark", "kcodec.testing.java", "kcodec.testing.jars", "psycopg"}
STARTS_A_BROKER = {"ApacheKafka", "Node", "find_java"}
#: Memory, sanitizers, packaging and property tests that take more than a few seconds each.
LONG: set[str] = set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what `make quick` leaves out."""
    if os.environ.get("KCODEC_QUICK") != "1":
        return
    chosen = [item for item in items if is_quick(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def is_quick(item: pytest.Item) -> bool:
    """Whether a test needs neither Java nor Spark nor much time."""
    if FIXTURES & set(getattr(item, "fixturenames", ())):
        return False
    return item.path.parent != TESTS or (item.path.stem not in LONG and not needs_java(item.path.stem))


@cache
def needs_java(name: str) -> bool:
    """Whether a module of the tests starts a broker, or imports what does."""
    path = TESTS / f"{name}.py"
    if not path.exists():
        return False
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in STARTS_A_BROKER:
            return True
        for imported in imports(node):
            if imported in MODULES or (imported != name and needs_java(imported)):
                return True
    return False


def imports(node: ast.AST) -> list[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
