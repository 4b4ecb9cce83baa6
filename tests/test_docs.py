# SPDX-License-Identifier: Apache-2.0
"""Pages of docs/: what is drawn from the code is what the code says now, and examples with an assertion run."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
draw_docs = importlib.import_module("draw_docs")
sys.path.remove(str(ROOT / "tools"))

PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    (page.name, number, example)
    for page in PAGES
    for number, example in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")))
    if "assert " in example and page.name not in ("admin.md", "testing.md")  # which test_docs_broker.py runs
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


def test_every_claim_of_the_docs_is_a_test_and_every_test_is_told() -> None:
    told = re.findall(
        r"`(test_\w+)` \|$", (ROOT / "docs" / "transactions.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    claims = (ROOT / "tests" / "test_transaction_claims.py").read_text(encoding="utf-8")
    assert told
    assert told == re.findall(r"^def (test_\w+)\(", claims, re.MULTILINE)
