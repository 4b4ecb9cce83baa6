# SPDX-License-Identifier: Apache-2.0
"""Every exception that a table of the documentation gives a remedy has it in `.remedy`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kcodec
from kcodec import errors
from kcodec.client import Producer

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
REMEDIES = {"retry", "abort", "recreate", "stop"}
EXAMPLES: dict[str, kcodec.KcodecError] = {
    "AbortableTransactionError": errors.AbortableTransactionError("x", code=1, name="X", remedy="abort"),
    "TransactionTimedOutError": errors.TransactionTimedOutError("x", code=1, name="X", remedy="abort"),
    "ProducerFencedError": errors.ProducerFencedError("x", code=1, name="X"),
    "AuthorizationError": errors.AuthorizationError("x", code=1, name="X"),
    "FatalTransactionError": errors.FatalTransactionError("x", code=1, name="X", remedy="recreate"),
    "UnknownOutcomeError": errors.UnknownOutcomeError("x"),
    "DeliveryTimeoutError": errors.DeliveryTimeoutError("x", remedy="abort"),
    "TransactionStateError": errors.TransactionStateError("x", state="READY", event="SEND"),
    "TransportError": errors.TransportError("x"),
    "RequestTimedOutError": errors.RequestTimedOutError("x"),
    "AuthenticationError": errors.AuthenticationError("x"),
    "BufferFullError": errors.BufferFullError("x"),
}


def rows() -> list[tuple[str, str, str]]:
    """(page, exception, what the column says) of every table with a column for the remedy and one for the exception."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        column = None
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
            if not cells:
                column = None
            elif "`.remedy`" in cells:
                column = cells.index("`.remedy`")
            elif column is not None and (name := re.match(r"`(\w+Error)`", cells[0])):
                found.append((page.name, name[1], cells[column]))
    return found


def test_there_are_such_tables() -> None:
    assert {name for page, name, _ in rows() if page == "transactions.md"} >= {
        "DeliveryTimeoutError",
        "BufferFullError",
    }


@pytest.mark.parametrize(("page", "name", "cell"), rows())
def test_what_a_table_says_is_in_the_attribute(page: str, name: str, cell: str) -> None:
    error = EXAMPLES[name]
    words = re.findall(r"`(\w+)`", cell)
    documented = {word for word in words if word in REMEDIES}
    assert error.remedy in documented if documented else error.remedy is None


def test_every_error_has_the_attribute() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, kcodec.KcodecError):
            assert getattr(kind, "remedy", None) in {None, *REMEDIES}
            assert "remedy" in dir(kind) or issubclass(kind, kcodec.BrokerError)


def test_a_late_commit_has_the_remedy_abort() -> None:
    with Producer(bootstrap_servers="127.0.0.1:1", transactional_id="late") as producer:
        with pytest.raises(kcodec.DeliveryTimeoutError) as caught:
            producer.init_transactions(timeout=0.2)
        assert caught.value.remedy == "retry"
