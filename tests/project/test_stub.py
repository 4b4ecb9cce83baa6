# SPDX-License-Identifier: Apache-2.0
"""The stub of the compiled core has the docstrings of the core, for editors."""

from __future__ import annotations

import ast
from pathlib import Path

import draw_stub
import pytest

from kcodec import _fast


def test_the_stub_has_the_docstrings_of_the_core() -> None:
    source = draw_stub.STUB.read_text(encoding="utf-8")
    assert draw_stub.draw(source) == source
    described = dict(draw_stub.definitions(ast.parse(source).body, _fast))
    assert {"decode", "encode", "DecodedRecords", "column"} <= {node.name for node in described}
    for node, text in described.items():
        assert ast.get_docstring(node) == text


def test_an_edited_docstring_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = draw_stub.STUB.read_text(encoding="utf-8")
    edited = tmp_path / "_fast.pyi"
    edited.write_text(source.replace("Decode the record batches", "Decode"))
    monkeypatch.setattr(draw_stub, "STUB", edited)
    assert draw_stub.main(["--check"]) == 1
    assert "run: python tools/draw_stub.py" in capsys.readouterr().err
    assert draw_stub.main([]) == 0
    assert edited.read_text() == source
