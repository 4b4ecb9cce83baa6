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
draw_performance = importlib.import_module("draw_performance")
sys.path.remove(str(ROOT / "tools"))

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Pages whose examples need a broker.
ON_A_BROKER = {
    page
    for name in ("test_docs_broker.py", "test_docs_get_started.py")
    for page in re.findall(r'"([\w/-]+\.md)"', Path(__file__).with_name(name).read_text("utf-8"))
}
EXAMPLES = [
    (str(page.relative_to(DOCS)), number, example)
    for page in PAGES
    for number, example in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")))
    if "assert " in example and str(page.relative_to(DOCS)) not in ON_A_BROKER
]


def test_what_is_drawn_is_what_the_code_says() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    stale = [page.name for page, text in zip(PAGES, texts, strict=True) if draw_docs.with_current_parts(text) != text]
    assert stale == [], "run tools/draw_docs.py"
    shown = {name for text in texts for name in re.findall(r"<!-- drawn: ([\w-]+) -->", text)}
    assert {"apis", "other-messages", "errors"} <= shown <= set(draw_docs.DRAWN)
    assert all(text.count("<!-- drawn: ") == text.count("<!-- end -->") for text in texts)


def test_a_stale_table_is_found() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    stale = text.replace("| 26 | EndTxn | 0-5 |", "| 26 | EndTxn | 0-4 |")
    assert stale != text
    assert draw_docs.with_current_parts(stale) == text


@pytest.mark.parametrize(("page", "number", "example"), EXAMPLES)
def test_examples_run(page: str, number: int, example: str) -> None:
    exec(compile(example, f"docs/{page}, example {number}", "exec"), {})


def test_there_are_examples() -> None:
    assert any(page == "protocol.md" for page, _, _ in EXAMPLES)


@pytest.mark.parametrize("name", ["test_consumer_claims.py", "test_transaction_claims.py"])
def test_every_claim_of_the_docs_is_a_test_and_every_test_is_listed(name: str) -> None:
    page = (ROOT / "docs" / "myths.md").read_text(encoding="utf-8")
    tests = functions(next((ROOT / "tests").rglob(name)))
    reported = [test for test in re.findall(r"`(test_\w+)` \|$", page, re.MULTILINE) if test in tests]
    assert tests and reported == tests


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


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path, text: str) -> list[str]:
    """Return the links of a page that lead nowhere inside the checkout."""
    wrong = []
    for found in LINK.finditer(CODE.sub("", text)):
        link = found[1] or found[2]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](producer.md#options) [b](producer.md#no-such) [c](no-such.md) ![d](images/none.svg) `[e](code.md)`"
    assert broken_links(DOCS / "index.md", text) == ["producer.md#no-such", "no-such.md", "images/none.svg"]


def test_the_navigation_names_every_page() -> None:
    """docs/conf.py makes the table of contents of these lists."""
    lists = [DOCS / "index.md", DOCS / "design" / "index.md", DOCS / "reference" / "api" / "index.md"]
    link = re.compile(r"^- \[[^]]+\]\(([\w/-]+\.md)\)", re.MULTILINE)
    named = {(page.parent / name).resolve() for page in lists for name in link.findall(page.read_text("utf-8"))}
    assert named | {DOCS / "index.md"} >= set(PAGES)


def test_charts_are_those_of_the_results() -> None:
    assert draw_performance.stale_charts() == [], "run tools/draw_performance.py"
