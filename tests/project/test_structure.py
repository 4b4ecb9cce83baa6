# SPDX-License-Identifier: Apache-2.0
"""What `tools/structure.py` counts and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import structure
from structure import c_lines, circles, cython_lines, equal_names, faults, is_generated, module_circles, python_lines

PYTHON = '''# A comment.
"""A docstring
of two lines."""

import os  # code

TEXT = """code
# code

code"""


def f(
    x: int,
    # A comment.
) -> int:
    """A docstring."""
    return x
'''


@pytest.fixture(name="file")
def python_file(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text(PYTHON)
    return path


def test_the_source_has_no_fault() -> None:
    """No circle of imports and no repeated name of a class but the explained ones, and no explanation too many."""
    found = faults(module_circles(), equal_names(), structure.EXPLAINED_CIRCLES, structure.EXPLAINED_NAMES)
    assert list(found) == []


def test_comments_and_docstrings_are_no_code(file: Path) -> None:
    assert python_lines(file) == 9


@pytest.mark.parametrize(
    ("count", "text", "lines"),
    [
        (cython_lines, 'cdef int f():\n    """Text\n    more."""\n    # comment\n\n    return 1\n', 2),
        (cython_lines, 'x = """\ny\n"""\n', 3),
        (c_lines, "/* one\n two */\nint x; // three\n// four\n\nint y; /* five */\n", 2),
    ],
)
def test_lines_of_the_core_are_counted(count: Callable[[str], int], text: str, lines: int) -> None:
    assert count(text) == lines


def test_a_generated_file_is_recognized(file: Path) -> None:
    assert not is_generated(file)
    file.write_text(f"# Generated from aio/module.py by tools/x.py; do not edit\n{PYTHON}")
    assert is_generated(file)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}}) == []


@pytest.mark.parametrize(
    ("circle", "names", "explained_circles", "explained_names", "text"),
    [
        ([["a", "b"]], {}, {}, {}, "modules import each other in a circle: a, b;"),
        ([], {}, {frozenset("ab"): "why"}, {}, "a circle that is gone: a, b;"),
        ([], {"Range": ["a", "b"]}, {}, {}, "several modules declare a class Range: a, b;"),
        ([], {}, {}, {"Range": "why"}, "a name that one module declares: Range;"),
    ],
)
def test_what_is_not_explained_is_a_fault(
    circle: list[list[str]],
    names: dict[str, list[str]],
    explained_circles: dict[frozenset[str], str],
    explained_names: dict[str, str],
    text: str,
) -> None:
    (found,) = faults(circle, names, explained_circles, explained_names)
    assert text in found


def test_what_is_explained_is_no_fault() -> None:
    assert list(faults([["b", "a"]], {"Range": ["a", "b"]}, {frozenset("ab"): "why"}, {"Range": "why"})) == []


def test_each_explanation_has_a_reason() -> None:
    assert all(structure.EXPLAINED_CIRCLES.values())
    assert all(structure.EXPLAINED_NAMES.values())
