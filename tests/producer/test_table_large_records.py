# SPDX-License-Identifier: Apache-2.0
"""Tables with records above the usual size of a batch: max_request_size limits them, as it does with `send`."""

from __future__ import annotations

import pyarrow
import pytest

import kcodec
from kcodec.errors import EncodeError
from kcodec.producer.options import ProducerSettings
from kcodec.producer.tables import ARROW_BATCH_BYTES, table_batches

HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


@pytest.mark.parametrize("column", ["value", "headers"])
def test_a_record_above_the_size_of_a_batch_is_sent(column: str) -> None:
    large = b"x" * (3 * ARROW_BATCH_BYTES)
    values = [b"a", large if column == "value" else b"b", b"c"]
    headers = pyarrow.array([None, [("h", large)] if column == "headers" else None, None], HEADERS)
    made = table_batches(pyarrow.table({"value": values, "headers": headers}), 1, ProducerSettings(), 0, None)
    records = [record for batch in made for record in kcodec.decode(batch.data).records()]
    assert [record.value for record in records] == values
    assert [dict(record.headers).get("h") for record in records] == [None, large if column == "headers" else None, None]


def test_a_record_above_max_request_size_is_refused_with_its_row() -> None:
    table = pyarrow.table({"value": [b"a", b"x" * 2_000_000]})
    text = r"row 1: the record takes 2000\d+ bytes, above max_request_size 1048576; send smaller records"
    with pytest.raises(EncodeError, match=text):
        list(table_batches(table, 1, ProducerSettings(), 0, None))
