# SPDX-License-Identifier: Apache-2.0
"""kcodec.client and kcodec.client.aio: their names are imported when asked for, and type checkers see the same."""

from __future__ import annotations

import ast
import asyncio
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import kcodec.client
from kcodec.client import Consumer, aio

PACKAGES = ["kcodec.client", "kcodec.client.aio"]


def names_for_type_checkers(package: str) -> set[str]:
    tree = ast.parse(Path(str(importlib.import_module(package).__file__)).read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.If):
            found |= {
                alias.name for inner in ast.walk(node) if isinstance(inner, ast.ImportFrom) for alias in inner.names
            }
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_is_there_for_programs_and_type_checkers(package: str) -> None:
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert set(module.__all__) == names_for_type_checkers(package) <= set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'Produzer'"):
        module.Produzer  # noqa: B018


def test_both_apis_have_the_same_names() -> None:
    """A program that changes from one API to the other only changes the name of the package in its imports."""
    assert set(kcodec.client.__all__) == set(aio.__all__)
    assert {"TopicPartition", "OffsetAndMetadata", "ConsumerGroupMetadata"} <= set(aio.__all__)
    assert aio.NewTopic is kcodec.client.NewTopic


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, kcodec.client; assert not [name for name in sys.modules if name.startswith('kcodec.client.')]"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("kcodec.client.metrics", "Metrics"),
        ("kcodec.client.security", "Security"),
        ("kcodec.protocol.secret", "Secret"),
    ],
)
def test_a_name_that_has_moved_works_with_a_warning(old: str, name: str) -> None:
    module = importlib.import_module(old)
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} has moved: import it from kcodec.client"):
        found = getattr(module, name)
    assert found is getattr(importlib.import_module("kcodec.client"), name)
    with pytest.raises(AttributeError, match="has no attribute 'Sercet'"):
        module.Sercet  # noqa: B018


def test_the_error_for_a_wrong_argument_names_the_public_method() -> None:
    """Many methods of the public classes are functions of other modules, whose names users do not know."""
    reason = r"^Consumer\.seek\(\) takes 3 positional arguments but 4 were given"
    with Consumer(bootstrap_servers="localhost:1") as consumer, pytest.raises(TypeError, match=reason):
        consumer.seek("orders", 0, 5)  # type: ignore[call-arg, arg-type]

    async def seek() -> None:
        async with aio.Consumer(bootstrap_servers="localhost:1") as consumer:
            await consumer.seek("orders", 0, 5)  # type: ignore[call-arg, arg-type]

    with pytest.raises(TypeError, match=reason):
        asyncio.run(seek())
