# SPDX-License-Identifier: Apache-2.0
"""Proofs and results that the documentation names: each part of `make prove`, program and result file is there."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
prove = importlib.import_module("prove")
sys.path.remove(str(ROOT / "tools"))

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PARTS = re.compile(r"make prove ARGS=\"--only ([\w -]+)\"")
PROGRAM = re.compile(r"\b((?:tests|tools|examples|benchmarks)/[\w/]+\.py|prove_\w+\.py)\b")
RESULT = re.compile(r"\b((?:tests|benchmarks)/results/[\w.-]+\.(?:txt|json))\b")


def missing_proofs(text: str) -> list[str]:
    """Return the parts, programs and result files that a page names and that are not there."""
    parts = [name for names in PARTS.findall(text) for name in names.split() if name not in prove.PARTS]
    named = [*PROGRAM.findall(text), *RESULT.findall(text)]
    paths = [ROOT / ("" if "/" in name else "tests/prove") / name for name in named]
    return parts + [name for name, path in zip(named, paths, strict=True) if not path.is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_cites_as_a_proof_is_there(page: Path) -> None:
    assert missing_proofs(page.read_text(encoding="utf-8")) == []


def test_a_proof_that_is_not_there_is_found() -> None:
    there = 'make prove ARGS="--only ray delta", `prove_delta.py`, tests/prove/prove_copy.py, tests/results/ray.txt'
    assert missing_proofs(there) == []
    others = 'make prove ARGS="--only ray rays", prove_rays.py, [a](../tests/results/rays.txt), examples/rays.py'
    assert missing_proofs(others) == ["rays", "prove_rays.py", "examples/rays.py", "tests/results/rays.txt"]


def helpers_out_of_reach(text: str) -> list[str]:
    """Return the modules of tests/support that a program of tests/prove imports without that folder in its path."""
    head = text.partition("\ndef ")[0]
    imported = re.findall(r"^(?:from|import) (\w+)", head, re.MULTILINE)
    helpers = [name for name in imported if (ROOT / "tests" / "support" / f"{name}.py").is_file()]
    return [] if '"support"' in head else helpers


def test_each_proof_starts_as_a_program() -> None:
    """`make prove` gives the helpers of the tests to its parts, a shell does not."""
    programs = sorted((ROOT / "tests" / "prove").glob("prove_*.py"))
    assert {path.name: found for path in programs if (found := helpers_out_of_reach(path.read_text("utf-8")))} == {}
    assert helpers_out_of_reach("import sys\n\nfrom copy_story import CopyStory\n") == ["copy_story"]
