# SPDX-License-Identifier: Apache-2.0
"""The Spark examples of the README and of docs/get-started run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kcodec

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.spark


def test_spark_examples_for_new_users_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log directory with the topic of the page is read, and its record is shown."""
    for partition in range(3):
        folder = tmp_path / f"greetings-{partition}"
        folder.mkdir()
        rows = [(b"first", b"hello")] if partition == 1 else []
        (folder / f"{0:020}.log").write_bytes(bytes(kcodec.encode(rows, timestamp=0)))
    monkeypatch.setenv("LOG_DIRECTORY", str(tmp_path))
    page = (ROOT / "docs" / "get-started" / "first-dataframe.md").read_text(encoding="utf-8")
    (example,) = (text for text in BLOCK.findall(page) if "pyspark" in text)
    exec(compile(example, "first-dataframe.md", "exec"), {})
    assert "|        1|     0|hello|" in capsys.readouterr().out

    readme = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (example,) = (text for text in readme if "spark.read" in text)
    exec(compile(example, "README.md", "exec"), {"spark": spark, "path": str(tmp_path / "greetings-1")})
    assert "|     0|" in capsys.readouterr().out
