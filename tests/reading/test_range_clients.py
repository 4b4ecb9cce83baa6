# SPDX-License-Identifier: Apache-2.0
"""read_ranges: the clients that are kept between calls, and the public API; brokers are listeners on loopback."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from range_reader import ServedWorld, worlds
from topic_reader import fill

import kcodec
from kcodec import OffsetRange
from kcodec.client import aio, client_pool, range_records
from kcodec.client.aio import range_records as aio_range_records
from kcodec.client.client_pool import ClientPool
from kcodec.client.waiting import IoLoop
from kcodec.errors import OffsetOutOfRangeError, TransportError

CHILD_SECONDS = 20
RANGE = OffsetRange("t", 0, 3, 9)
Pool = ClientPool[Any]


@pytest.fixture(autouse=True)
def _pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool of its own for each test, and none of its clients left."""
    pool: Pool = ClientPool(IoLoop)
    monkeypatch.setattr(range_records, "_clients", pool)
    yield pool
    for each in pool._clients:
        assert each.users == 0
        each.io_loop.close()


@pytest.fixture
def served() -> Iterator[ServedWorld]:
    world, logs = worlds("t", partitions=2, nodes=2)
    for log in logs["t"]:
        fill(log)
    with ServedWorld(world) as brokers:
        yield brokers


def read(served: ServedWorld, *ranges: OffsetRange, **options: Any) -> list[int]:
    """The offsets of the records."""
    with kcodec.read_ranges(ranges or [RANGE], bootstrap_servers=served.servers, **options) as records:
        return [record.offset for batch in records for record in batch.records()]


def is_kept(pool: Pool) -> int:
    return len(pool._clients)


# Calls after one another


def test_a_second_call_is_one_fetch(served: ServedWorld, _pool: Pool) -> None:
    assert read(served) == [*range(3, 9)]
    assert "ListOffsets" not in served.taken()
    connections = served.connections
    for _ in range(3):
        assert read(served) == [*range(3, 9)]
        assert served.taken() == ["Fetch"]
    assert served.connections == connections
    assert is_kept(_pool) == 1


def test_options_of_the_read_alone_share_a_client(served: ServedWorld, _pool: Pool) -> None:
    read(served)
    read(served, columns=("offset", "value"), isolation_level="read_uncommitted", spark_layout=False)
    assert is_kept(_pool) == 1


def test_other_options_of_the_client_are_another_client(served: ServedWorld, _pool: Pool) -> None:
    read(served)
    read(served, client_id="another")
    assert is_kept(_pool) == 2
    assert read(served, client_id="another") == [*range(3, 9)]
    assert is_kept(_pool) == 2


def test_a_list_of_addresses_that_changes_is_another_client(served: ServedWorld, _pool: Pool) -> None:
    servers = [served.servers]
    for expected in (1, 1, 2):
        with kcodec.read_ranges([RANGE], bootstrap_servers=servers) as records:
            assert sum(map(len, records)) == 6
        assert is_kept(_pool) == expected
        if served.taken() == ["Fetch"]:
            servers.append(served.peers[2].address)


def test_the_number_of_idle_clients_is_bounded(
    served: ServedWorld, _pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_pool, "MOST_IDLE", 2)
    loops = []
    for number in range(5):
        read(served, client_id=f"client-{number}")
        loops.append(_pool._clients[-1].io_loop)
    assert [loop.is_closed for loop in loops] == [True, True, False, False, False]
    assert is_kept(_pool) == 3  # two, and the one of the last call, which was not idle when it was taken


def test_invalid_options_are_an_error_at_once(_pool: Pool) -> None:
    for arguments, options, text in (
        ([RANGE], {}, "bootstrap_servers is missing"),
        ([RANGE], {"bootstrap_servers": "b:9092", "colums": ()}, "read_ranges has no option 'colums'"),
        (5, {"bootstrap_servers": "b:9092"}, "ranges: expected OffsetRange or a list of them, got 5"),
        ([("t", 0, 1, 2)], {"bootstrap_servers": "b:9092"}, "ranges: expected OffsetRange, got"),
        ([RANGE], {"bootstrap_servers": "b:9092", "on_missing": "ignore"}, "on_missing must be one of raise, skip"),
    ):
        given: Any = arguments
        for function in (kcodec.read_ranges, aio.read_ranges):
            with pytest.raises((TypeError, ValueError), match=text):
                function(given, **options)
    assert not is_kept(_pool)


# Calls that end otherwise


def test_missing_offsets_leave_the_client(served: ServedWorld, _pool: Pool) -> None:
    with pytest.raises(
        OffsetOutOfRangeError, match=r"range t-0 \[3, 90\): .* not in the log, which has offsets 0 to 30 \(exclusive\)"
    ):
        read(served, OffsetRange("t", 0, 3, 90))
    served.taken()
    assert read(served) == [*range(3, 9)]
    assert served.taken() == ["Fetch"]


def test_a_client_whose_connections_failed_is_dropped(served: ServedWorld, _pool: Pool) -> None:
    options: dict[str, Any] = {"default_api_timeout_ms": 500, "reconnect_backoff_ms": 10}
    read(served, **options)
    loop = _pool._clients[0].io_loop
    served.close()
    with pytest.raises(TransportError, match=r"t-0: offset 3 \(reading up to 9\) could not be read within 0.5 s"):
        read(served, **options)
    assert loop.is_closed
    assert not is_kept(_pool)


def test_a_client_that_fails_while_another_call_uses_it(served: ServedWorld, _pool: Pool) -> None:
    """The other call goes on with it, later calls get another one, and the last one to use it closes it."""
    with kcodec.read_ranges([RANGE], bootstrap_servers=served.servers) as records:
        loop = _pool._clients[0].io_loop
        other = kcodec.read_ranges([OffsetRange("t", 1, 0, 3)], bootstrap_servers=served.servers)
        other._fail(TransportError("the connection was closed"))
        assert not loop.is_closed
        assert not is_kept(_pool)
        assert read(served) == [*range(3, 9)]
        assert sum(map(len, records)) == 6
    assert loop.is_closed
    assert is_kept(_pool) == 1


def test_a_read_that_is_closed_early_leaves_the_client(served: ServedWorld, _pool: Pool) -> None:
    records = kcodec.read_ranges(
        [OffsetRange("t", 0, 0, 30), OffsetRange("t", 1, 0, 30)],
        bootstrap_servers=served.servers,
        max_partition_fetch_bytes=100,
        fetch_ahead_max_bytes=100,
    )
    assert len(next(records)) > 0
    records.close()
    records.close()
    with pytest.raises(TransportError, match="closed before it was complete"):
        list(records)
    tasks = [task.name for task in _pool._clients[0].io_loop.client.scheduler.tasks]
    assert not [name for name in tasks if name.startswith("read of")]
    assert read(served) == [*range(3, 9)]
    assert is_kept(_pool) == 1


def test_a_read_that_is_dropped_warns_and_leaves_the_client(served: ServedWorld, _pool: Pool) -> None:
    records = kcodec.read_ranges([RANGE], bootstrap_servers=served.servers)
    with pytest.warns(ResourceWarning, match=r"<RangeRecords 1 ranges, 0 of 6 offsets> was not closed"):
        del records
        gc.collect()
    assert read(served) == [*range(3, 9)]
    assert is_kept(_pool) == 1


def test_calls_of_several_threads_share_a_client(served: ServedWorld, _pool: Pool) -> None:
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(read(served))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [[*range(3, 9)]] * 8
    assert is_kept(_pool) == 1


def test_the_report_of_a_read(served: ServedWorld) -> None:
    served.world.served["t", 0].log_start = 6
    ranges = [RANGE, OffsetRange("t", 1, 0, 5)]
    with kcodec.read_ranges(ranges, bootstrap_servers=served.servers, on_missing="skip") as records:
        list(records)
    assert [(one.range, one.next_offset, one.lost) for one in records.ranges] == [(ranges[0], 9, 3), (ranges[1], 5, 0)]
    assert records.counts.records == 8
    assert records.bytes_fetched > 0


def test_spark_layout_has_the_columns_and_types_of_spark(served: ServedWorld) -> None:
    import pyarrow as pa

    from kcodec.spark.columns import KAFKA_COLUMNS, arrow_schema

    with kcodec.read_ranges([RANGE], bootstrap_servers=served.servers, spark_layout=True) as records:
        stream = pa.RecordBatchReader.from_stream(records)
        table = stream.read_all()
    theirs = arrow_schema(KAFKA_COLUMNS)
    assert table.schema.names == [column.column for column in KAFKA_COLUMNS]
    assert table.schema.types == theirs.types
    assert all(field.nullable for field in table.schema)
    assert table["offset"].to_pylist() == [*range(3, 9)]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [(1_700_000_000_000 + at) * 1000 for at in range(3, 9)]
    with kcodec.read_ranges(
        [RANGE], bootstrap_servers=served.servers, spark_layout=True, columns=("headers", "offset")
    ) as records:
        (batch,) = [pa.record_batch(each) for each in records]
    assert batch.schema.names == ["headers", "offset"]
    assert batch["headers"].null_count == 6


# Other processes


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_makes_its_own_client(served: ServedWorld, _pool: Pool) -> None:
    """Also one that is forked while another thread takes a client from the pool."""
    read(served)
    connections = served.connections
    with _pool._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(CHILD_SECONDS)
            try:
                is_right = not is_kept(_pool) and read(served) == [*range(3, 9)] == read(served)
            except BaseException:  # noqa: BLE001  told by the exit code
                is_right = False
            os._exit(0 if is_right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert served.connections > connections
    served.taken()
    assert read(served) == [*range(3, 9)]
    # The parent's client is kept. A refresh of its metadata may be due.
    assert {"Fetch"} <= set(served.taken()) <= {"Fetch", "Metadata"}


def test_clients_are_closed_when_the_interpreter_exits(served: ServedWorld) -> None:
    program = (
        "import kcodec, sys\n"
        "with kcodec.read_ranges([kcodec.OffsetRange('t', 0, 3, 9)], bootstrap_servers=sys.argv[1]) as records:\n"
        "    print(sum(map(len, records)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program, served.servers],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("6\n", "")


# asyncio


async def read_aio(served: ServedWorld) -> list[int]:
    async with aio.read_ranges([RANGE], bootstrap_servers=served.servers) as records:
        return [record.offset async for batch in records for record in batch.records()]


def test_calls_in_an_event_loop_share_a_client_until_it_ends(served: ServedWorld) -> None:
    async def twice() -> None:
        assert await read_aio(served) == [*range(3, 9)]
        served.taken()
        assert [*await asyncio.gather(read_aio(served), read_aio(served))] == [[*range(3, 9)]] * 2
        assert served.taken() == ["Fetch", "Fetch"]

    before = threading.active_count()
    for _ in range(2):
        connections = served.connections
        asyncio.run(twice())
        assert served.connections > connections
    kept = aio_range_records._clients._clients
    assert [each.is_usable for each in kept] == [False]
    assert threading.active_count() - before <= served.connections  # threads of the listeners alone


def test_an_error_of_connections_drops_the_client_of_an_event_loop(served: ServedWorld) -> None:
    async def fail() -> None:
        async with aio.read_ranges([RANGE], bootstrap_servers=served.servers) as records:
            (kept,) = (each for each in aio_range_records._clients._clients if each.is_usable)
            records._reading._read._error = TransportError("broken")  # type: ignore[union-attr]
            records._reading._read._responses.clear()  # type: ignore[union-attr]
            with pytest.raises(TransportError, match="broken"):
                await anext(records)
        assert kept.io_loop.is_closed
        assert await read_aio(served) == [*range(3, 9)]

    asyncio.run(fail())


def test_a_read_that_is_cancelled_leaves_the_client(served: ServedWorld) -> None:
    async def cancel() -> None:
        await read_aio(served)
        served.world.served["t", 0].append(b"open", producer_id=9)
        waiting = asyncio.create_task(_until(served, 31))
        await asyncio.sleep(0.2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        served.taken()
        assert await read_aio(served) == [*range(3, 9)]
        assert served.taken() == ["Fetch"]

    asyncio.run(cancel())


async def _until(served: ServedWorld, end: int) -> None:
    async with aio.read_ranges([OffsetRange("t", 0, 28, end)], bootstrap_servers=served.servers) as records:
        async for _ in records:
            pass
