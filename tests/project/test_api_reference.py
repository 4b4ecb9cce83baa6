# SPDX-License-Identifier: Apache-2.0
"""The API reference: every public name has an entry with text, and compiled classes have signatures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import api_reference
import docstring_markup
import pytest
from api_reference import Entry

import kcodec

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ROOT / "docs" / "reference" / "api"
KNOWN_GAPS = ROOT / "tests" / "lint" / "reference_gaps.txt"


def test_each_public_name_has_an_entry() -> None:
    """An entry of its own, or a link to the one in another module."""
    for module in api_reference.MODULES:
        text = api_reference.reference(module)
        missing = [name for name in api_reference.public_names(module) if name not in text]
        assert missing == [], module


def test_no_module_has_an_empty_page() -> None:
    assert [module for module in api_reference.MODULES if not api_reference.entries(module)] == []


def test_each_module_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    assert [module for module in api_reference.MODULES if f"{{public-names}} {module}\n" not in text] == []


def test_no_entry_gets_a_new_gap() -> None:
    """Text, parameters, units and signatures. The file of known gaps must not grow (tools/api_reference.py)."""
    known = set(KNOWN_GAPS.read_text(encoding="utf-8").splitlines())
    new = [gap for gap in api_reference.gaps() if gap not in known]
    assert new == [], "explain these in their docstrings"
    assert not any("no signature" in gap or gap.endswith(": no docstring") for gap in known)


def test_a_name_without_text_is_found() -> None:
    def wait(limit: int, timeout: float | None = None) -> None:
        pass

    entry = api_reference.entry_of("wait", "kcodec", wait)
    assert list(entry.lacks()) == [
        "kcodec.wait: no docstring",
        "kcodec.wait: nothing explains the parameter limit",
        "kcodec.wait: nothing explains the parameter timeout",
        "kcodec.wait: the unit of timeout is not stated",
    ]
    reported = dataclasses.replace(entry, text="Wait until `limit` is reached, or for `timeout` seconds.")
    assert list(reported.lacks()) == []


def test_a_compiled_class_without_signature_is_found() -> None:
    entry = Entry("Thing", "kcodec", "class", "", "A thing.", object, is_compiled=True)
    assert list(entry.lacks()) == ["kcodec.Thing: no signature in _fast.pyi"]


def test_signatures_of_the_core_have_types_and_defaults() -> None:
    entries = {entry.name: entry for entry in api_reference.entries("kcodec")}
    assert entries["decode"].is_compiled
    assert "check_crcs: bool=True" in entries["decode"].signature
    assert entries["decode"].signature.endswith("-> DecodedRecords")
    methods = {one.name: one.signature for one in entries["DecodedRecords"].members}
    assert methods["column"] == "(name: str) -> Column"


def test_signatures_of_named_tuples_have_plain_types() -> None:
    entries = {entry.name: entry for entry in api_reference.entries("kcodec.protocol.schema")}
    assert entries["Versions"].signature == "(first: int, last: int)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Return `x*y` of a_ and *b*.", ["Return ``x*y`` of a\\_ and \\*b\\*.", ""]),
        ("- one\n  more\n- two", ["- one", "  more", "- two", ""]),
        (">>> f()\n1", [".. code-block:: pycon", "", "   >>> f()", "   1", ""]),
        ("    with f():\n        g()", [".. code-block:: python", "", "   with f():", "       g()", ""]),
        ("    f(x)", [".. code-block:: python", "", "   f(x)", ""]),
        ("name: a text\n  that goes on\nother: more", None),
        ("See `kcodec.decode` and docs/producer.md.", None),
    ],
)
def test_docstrings_become_restructured_text(text: str, expected: list[str] | None) -> None:
    lines = docstring_markup.as_rst(text, ("name", "other"), api_reference.targets())
    if expected is not None:
        assert lines == expected
    elif text.startswith("name"):
        assert lines[:4] == ["``name``", "    a text", "    that goes on", "``other``"]
    else:
        assert lines[0] == "See :py:obj:`kcodec.decode <kcodec.decode>` and :doc:`/producer`."


def test_exceptions_are_listed_by_call() -> None:
    table = api_reference.exceptions_by_call()
    assert "| `kcodec.decode` | " in table
    assert kcodec.DecodeError.__name__ in next(line for line in table.splitlines() if "`kcodec.decode`" in line)
