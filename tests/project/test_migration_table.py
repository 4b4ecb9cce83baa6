# SPDX-License-Identifier: Apache-2.0
"""docs/reference/migration-table.md: every name of the installed clients has a row, and its calls exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kcodec.client import Admin, Consumer, Producer, TransactionWriter, aio
from kcodec.network.foreign_options import WITHOUT_COUNTERPART

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))
import migration_table as table

OURS: dict[str, Any] = {"Consumer": Consumer, "Producer": Producer, "Admin": Admin}
CLASSES = {**OURS, "TransactionWriter": TransactionWriter}


def test_the_page_is_what_the_packages_say() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.draw(), "run: python tools/migration_table.py"


def test_no_method_and_no_option_is_without_a_row() -> None:
    assert table.missing() == []
    assert len(table.options()) > 250
    assert all(len(table.methods(kind)) > 20 for kind in table.CLIENTS)
    assert "store_offsets" in table.methods("Consumer") and "sasl.password" in table.options()


def test_a_name_without_a_row_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(table.CLIENTS["Consumer"][1], "getone")
    monkeypatch.delitem(WITHOUT_COUNTERPART, "error_cb")
    assert table.missing() == ["Consumer.getone", "option error_cb"]
    with pytest.raises(ValueError, match=r"no row for Consumer\.getone, option error_cb"):
        table.draw()


@pytest.mark.parametrize("kind", table.CLIENTS)
def test_every_call_that_a_row_names_exists(kind: str) -> None:
    calls = 0
    for name, cell in table.CLIENTS[kind][1].items():
        assert cell, name
        for owner, call in re.findall(r"`(?:(\w+)\.)?(\w+)\(\)`", cell):
            assert callable(getattr(CLASSES[owner] if owner else OURS[kind], call, None)), (name, call)
            if owner in ("", "Admin"):
                assert hasattr(getattr(aio, owner or kind), call)
            calls += 1
    assert calls > 15


def test_no_row_is_of_a_method_that_no_client_has() -> None:
    for kind, (_, cells) in table.CLIENTS.items():
        assert cells.keys() - table.methods(kind).keys() == set()
