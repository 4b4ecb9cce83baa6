# SPDX-License-Identifier: Apache-2.0
"""The README's examples that need no files and no broker run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow
import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def examples_of(section: str) -> list[str]:
    """The Python blocks below a heading."""
    _before, found, rest = README.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    assert found, f"the README has no section {section!r}"
    return re.findall(r"^```python\n(.*?)^```", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("section", ["Records to bytes"])
def test_examples_run(section: str) -> None:
    examples = examples_of(section)
    assert examples and all("assert" in example for example in examples)
    for example in examples:
        exec(compile(example, f"README.md, {section}", "exec"), {"pyarrow": pyarrow})
