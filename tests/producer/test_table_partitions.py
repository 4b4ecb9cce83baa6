# SPDX-License-Identifier: Apache-2.0
"""The partition of each row of a table: its column, else its key, unless keys are ignored."""

from __future__ import annotations

import pyarrow
import pytest

from kcodec import partition_for
from kcodec.producer.options import ProducerSettings
from kcodec.producer.tables import ANY_PARTITION, table_batches

KEYS = [b"%d" % row for row in range(20)]


@pytest.mark.parametrize("has_column", [False, True])
def test_ignored_keys_do_not_decide_the_partition(has_column: bool) -> None:
    column = pyarrow.array([2, None] * 10, "int32")
    columns = {"key": KEYS, "value": KEYS, **({"partition": column} if has_column else {})}
    table = pyarrow.table(columns)

    def counts(ignore_keys: bool) -> dict[int, int]:
        batches = table_batches(table, 3, ProducerSettings(ignore_keys=ignore_keys), 0, None)
        return {batch.partition: batch.records_count for batch in batches}

    assert counts(True) == ({2: 10, ANY_PARTITION: 10} if has_column else {ANY_PARTITION: 20})
    by_key = list(partition_for(pyarrow.array(KEYS), 3))
    decided = [2 if has_column and row % 2 == 0 else partition for row, partition in enumerate(by_key)]
    assert counts(False) == {partition: decided.count(partition) for partition in set(decided)}
