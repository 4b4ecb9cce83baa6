# SPDX-License-Identifier: Apache-2.0
"""The table "Where to look for a bug" of CONTRIBUTING.md, and the pages for contributors, name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "kcodec"
FILE_NAME = re.compile(r"[\w*./]+\.(?:py|pyx|pxi|c|h)|[\w/]+/")


def rows_of_the_table() -> list[str]:
    """Return the right column of each row."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("## Where to look for a bug")[2].partition("\n## ")[0]
    return [line.split(" | ", 1)[1] for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]


def missing_names(row: str) -> list[str]:
    """Return the names in one row that do not exist. A name without a folder belongs to the folder of the file before
    it; other names are relative to src/kcodec, or to the root of the checkout."""
    missing = []
    folder = PACKAGE
    for quoted in re.findall(r"`([^`]+)`", row):
        name = next((word for word in quoted.split() if FILE_NAME.fullmatch(word)), None)
        if name is None:
            continue
        found = [path for base in (folder, PACKAGE, ROOT) for path in sorted(base.glob(name))]
        if not found:
            missing.append(name)
        elif PACKAGE in found[0].parents:
            folder = found[0] if found[0].is_dir() else found[0].parent
    return missing


def test_each_file_that_the_bug_map_names_exists() -> None:
    """Files move between packages; the table must move with them."""
    rows = rows_of_the_table()
    assert len(rows) > 40, "the table was not found"
    assert missing_names("`producer/core.py`, `no_such_file.py`") == ["no_such_file.py"]
    assert not [name for row in rows for name in missing_names(row)]


@pytest.mark.parametrize("page", ["packages.md", "common-changes.md"])
def test_each_file_that_a_page_for_contributors_names_exists(page: str) -> None:
    paragraphs = (ROOT / "docs" / "design" / page).read_text("utf-8").split("\n\n")
    assert not [name for paragraph in paragraphs for name in missing_names(paragraph)]
