# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/: what is drawn from the code is what the code says now, and examples with an assertion run."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
draw_docs = importlib.import_module("draw_docs")
sys.path.remove(str(ROOT / "tools"))

PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Pages whose examples need a broker.
ON_A_BROKER = set(
    re.findall(r'Examples\("([\w-]+\.md)"', Path(__file__).with_name("test_docs_broker.py").read_text("utf-8"))
)
EXAMPLES = [
    (page.name, number, example)
    for page in PAGES
    for number, example in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")))
    if "assert " in example and page.name not in ON_A_BROKER
]


def test_what_is_drawn_is_what_the_code_says() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    stale = [page.name for page, text in zip(PAGES, texts, strict=True) if draw_docs.drawn_anew(text) != text]
    assert stale == [], "run tools/draw_docs.py"
    shown = {name for text in texts for name in re.findall(r"<!-- drawn: ([\w-]+) -->", text)}
    assert {"apis", "other-messages", "errors"} <= shown <= set(draw_docs.DRAWN)
    assert all(text.count("<!-- drawn: ") == text.count("<!-- end -->") for text in texts)


def test_a_stale_table_is_found() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    stale = text.replace("| 26 | EndTxn | 0-5 |", "| 26 | EndTxn | 0-4 |")
    assert stale != text
    assert draw_docs.drawn_anew(stale) == text


@pytest.mark.parametrize(("page", "number", "example"), EXAMPLES)
def test_examples_run(page: str, number: int, example: str) -> None:
    exec(compile(example, f"docs/{page}, example {number}", "exec"), {})


def test_there_are_examples() -> None:
    assert any(page == "protocol.md" for page, _, _ in EXAMPLES)


@pytest.mark.parametrize("name", ["test_consumer_claims.py", "test_transaction_claims.py"])
def test_every_claim_of_the_docs_is_a_test_and_every_test_is_told(name: str) -> None:
    page = (ROOT / "docs" / "myths.md").read_text(encoding="utf-8")
    tests = functions(next((ROOT / "tests").rglob(name)))
    told = [test for test in re.findall(r"`(test_\w+)` \|$", page, re.MULTILINE) if test in tests]
    assert tests and told == tests


def test_every_line_of_the_myths_has_a_test() -> None:
    page = (ROOT / "docs" / "myths.md").read_text(encoding="utf-8")
    lines = [
        line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| what is", "| ---"))
    ]
    assert len(lines) > 20
    assert [line for line in lines if not re.search(r"[.)] \| `test_\w+` \|$", line)] == []


def functions(path: Path) -> list[str]:
    """The tests of a file, in their order."""
    return re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def missing_tests(text: str) -> list[str]:
    """What a page names, as `test_name`, `tests/file.py` or `tests/file.py::test_name`, and is not there."""
    folder_of_tests = ROOT / "tests"
    files = {str(path.relative_to(folder_of_tests)): functions(path) for path in folder_of_tests.rglob("test_*.py")}
    every = {name for names in files.values() for name in names}
    wrong = []
    for folder, file, name in re.findall(r"`(tests/)?(?:([\w/]+\.py)(?:::)?)?(test_\w+)?`", text):
        if (folder and not file) or not (file or name) or (file and not folder):
            continue
        if file and not (ROOT / "tests" / file).exists():
            wrong.append(file)
        elif name and name not in (files[file] if file else every):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    assert missing_tests(page.read_text(encoding="utf-8")) == []


def test_a_test_that_is_not_there_is_found() -> None:
    there = "test_a_test_that_is_not_there_is_found"
    page = "tests/project/test_docs.py"
    assert missing_tests(f"`{page}::{there}`, `{there}`, `{page}`, `examples/outbox.py`") == []
    assert missing_tests(f"`tests/project/test_readme.py::{there}`") == [there]
    assert missing_tests("`test_nothing_of_the_kind`, `tests/test_nothing.py`") == [
        "test_nothing_of_the_kind",
        "test_nothing.py",
    ]


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\) \|", index, re.MULTILINE)) == [
        page.name for page in PAGES if page.name != "README.md"
    ]
