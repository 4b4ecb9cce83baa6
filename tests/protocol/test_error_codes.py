# SPDX-License-Identifier: Apache-2.0
"""The table of error codes against Kafka's class Errors, and the exceptions made of it."""

from __future__ import annotations

import pickle

import pytest
from java_judge import JavaJudge

from kcodec.errors import (
    AbortableTransactionError,
    AuthorizationError,
    BrokerError,
    FatalTransactionError,
    ProducerFencedError,
)
from kcodec.protocol.error_codes import ERRORS, MAX_MESSAGE, broker_error, error_code


def test_the_table_is_kafkas() -> None:
    with JavaJudge() as judge:
        reported = {error["code"]: (error["name"], error["retriable"]) for error in judge.errors()}
        exceptions = {error["code"]: error["exception"] for error in judge.errors()}
    assert {code: (row.name, row.retriable) for code, row in ERRORS.items()} == reported
    denied = {code for code, name in exceptions.items() if name and name.endswith("AuthorizationException")}
    assert {code for code in ERRORS if code and isinstance(broker_error(code, "x"), AuthorizationError)} == denied


def test_every_row_has_a_remedy_and_a_text() -> None:
    assert all(row.code == code for code, row in ERRORS.items())
    assert {row.remedy for row in ERRORS.values()} == {"retry", "abort", "recreate", "stop"}
    assert all((row.remedy == "retry") == row.retriable for row in ERRORS.values())
    assert len({row.text for row in ERRORS.values()}) == len(ERRORS)


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (29, AuthorizationError, "stop"),
        (48, FatalTransactionError, "recreate"),
        (51, BrokerError, "retry"),
        (90, ProducerFencedError, "stop"),
        (120, AbortableTransactionError, "abort"),
        (22, BrokerError, "abort"),
    ],
)
def test_a_code_chooses_class_and_remedy(code: int, kind: type[BrokerError], remedy: str) -> None:
    error = broker_error(code, "EndTxn of 'orders' at node 3", resource="orders")
    assert type(error) is kind
    assert (error.code, error.name, error.remedy, error.resource) == (code, ERRORS[code].name, remedy, "orders")
    assert str(error).startswith(f"EndTxn of 'orders' at node 3: {ERRORS[code].text} [{error.name}, {code}")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.resource) == (type(error), str(error), "orders")


def test_a_text_names_its_resource_once() -> None:
    assert "(g)" in str(broker_error(26, "JoinGroup", resource="g"))
    assert "(g)" not in str(broker_error(26, "JoinGroup of group 'g'", resource="g"))


def test_a_caller_who_knows_more_decides() -> None:
    error = broker_error(47, "Produce to a-0", remedy="recreate", kind=ProducerFencedError)
    assert type(error) is ProducerFencedError
    assert error.remedy == "recreate"


def test_a_code_of_a_later_kafka_is_named_unknown() -> None:
    code = error_code(9999)
    assert (code, code.name, code.retriable, str(code), pickle.loads(pickle.dumps(code))) == (
        9999,
        "UNKNOWN",
        False,
        "9999",
        9999,
    )
    error = broker_error(9999, "Produce")
    assert (error.code, error.name, error.remedy) == (9999, "UNKNOWN", "stop")


def test_no_error_is_none() -> None:
    with pytest.raises(ValueError, match="Produce: code 0 \\(NONE\\)"):
        broker_error(0, "Produce")


def test_what_the_broker_says_is_shown_on_one_line_and_not_without_end() -> None:
    reported = str(broker_error(42, "CreateTopics", message="no\nsuch\x1b[31m thing"))
    assert 'the broker says "no\\nsuch\\x1b[31m thing" [INVALID_REQUEST' in reported
    assert len(str(broker_error(42, "CreateTopics", message="x" * 1_000_000))) < MAX_MESSAGE + 200
