# SPDX-License-Identifier: Apache-2.0
"""Arguments that were renamed: the deprecated name works as before, with a warning that points at the caller's line."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kcodec
from kcodec import log
from kcodec._fast import Decoder, decode_fetch
from kcodec.client import Consumer, GroupTransactSession, aio
from kcodec.spark import decode_partition
from kcodec.spark.file_options import parse_options

BATCH = bytes(kcodec.encode([(None, b"value", (), 0)]))
#: A batch whose CRC is wrong, and nothing else.
CORRUPT = BATCH[:17] + bytes([BATCH[17] ^ 1]) + BATCH[18:]
#: No broker listens there, and no call waits for one.
NOWHERE: dict[str, Any] = {
    "bootstrap_servers": "127.0.0.1:1",
    "default_api_timeout_ms": 1,
    "request_timeout_ms": 1,
    "fetch_max_wait_ms": 0,
}
SESSION: dict[str, Any] = {**NOWHERE, "group_id": "g", "transactional_id": "t", "topics": ["orders"]}


def values(decoded: kcodec.DecodedRecords) -> list[bytes | None]:
    return [record.value for record in decoded.records()]


def partition(folder: Path) -> Path:
    directory = folder / "logs" / "orders-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020}.log").write_bytes(BATCH)
    return directory


def decoded_by_windows(**options: Any) -> list[bytes | None]:
    decoder = Decoder(**options)
    decoder.feed(CORRUPT)
    return [value for chunk in decoder.take(flush=True) for value in values(chunk)]


def fetched(**options: Any) -> list[bytes | None]:
    return values(decode_fetch(CORRUPT, topic="orders", partition=0, start_offset=0, **options))


def read_by_spark(**options: Any) -> list[bytes | None]:
    return [row[1] for row in decode_partition([CORRUPT], topic="orders", partition=0, **options)]


#: What decodes a batch with a wrong CRC if it is told not to check it.
DECODERS: dict[str, Callable[..., list[bytes | None]]] = {
    "decode": lambda **options: values(kcodec.decode(CORRUPT, **options)),
    "RecordBatch.decode": lambda **options: values(kcodec.batches(CORRUPT)[0].decode(**options)),
    "decode_fetch": fetched,
    "Decoder": decoded_by_windows,
    "spark.decode_partition": read_by_spark,
}
OPENERS: dict[str, Callable[..., Any]] = {
    "open": lambda folder, **options: kcodec.open(folder / "orders-0", **options),
    "open_directory": lambda folder, **options: kcodec.open(folder, **options)["orders-0"],  # type: ignore[index]
    "open_segment": lambda folder, **options: log.open_segment(folder / "orders-0" / f"{0:020}.log", **options),
    "open_partition": lambda folder, **options: log.open_partition(folder / "orders-0", **options),
    "open_log_directory": lambda folder, **options: log.open_log_directory(folder, **options)["orders-0"],
}


async def made_async(client: Callable[..., Any], options: dict[str, Any]) -> None:
    await client(**options).close()


#: What takes the options of a consumer, with those that it needs.
READERS: dict[str, Callable[..., Any]] = {
    "Consumer": lambda **options: Consumer(**NOWHERE, **options).close(),
    "GroupTransactSession": lambda **options: GroupTransactSession(**SESSION, **options).close(),
    "aio.Consumer": lambda **options: asyncio.run(made_async(aio.Consumer, {**NOWHERE, **options})),
    "read_topic": lambda **options: kcodec.read_topic("orders", **NOWHERE, **options),
    "scan_topic": lambda **options: kcodec.scan_topic("orders", **NOWHERE, **options),
}


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, list[warnings.WarningMessage]]:
    """Return the result of a call, or the transport error that ended it, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        try:
            result = function(*arguments, **options)
        except kcodec.TransportError as error:
            result = error
    return result, [one for one in caught if one.category is DeprecationWarning]


def assert_points_here(caught: list[warnings.WarningMessage], text: str) -> None:
    assert [str(one.message) for one in caught] == [text]
    assert caught[0].filename == __file__
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[caught[0].lineno - 1]
    assert "**options" in line or "with client" in line, line


@pytest.mark.parametrize("name", DECODERS)
def test_verify_crc_is_check_crcs(name: str) -> None:
    with pytest.raises(kcodec.CorruptBatchError):
        DECODERS[name]()
    assert call(DECODERS[name], check_crcs=False) == ([b"value"], [])
    found, caught = call(DECODERS[name], verify_crc=False)
    assert found == [b"value"]
    assert_points_here(caught, "verify_crc is deprecated: use check_crcs")
    with pytest.raises(kcodec.CorruptBatchError), pytest.warns(DeprecationWarning, match="use check_crcs"):
        DECODERS[name](verify_crc=True)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("given", [True, False])
def test_both_names_of_check_crcs_are_refused(name: str, given: bool) -> None:
    """Also if the present name is given its default."""
    with pytest.raises(TypeError, match="verify_crc is the deprecated name of check_crcs: pass check_crcs alone"):
        DECODERS[name](verify_crc=given, check_crcs=True)


@pytest.mark.parametrize("name", OPENERS)
def test_verify_crc_opens_logs(tmp_path: Path, name: str) -> None:
    folder = partition(tmp_path).parent
    opened, caught = call(OPENERS[name], folder, verify_crc=False)
    assert_points_here(caught, "verify_crc is deprecated: use check_crcs")
    same, caught = call(OPENERS[name], folder, check_crcs=False)
    assert (opened._check_crcs, same._check_crcs, caught) == (False, False, [])
    assert OPENERS[name](folder)._check_crcs is True
    with pytest.raises(TypeError, match="pass check_crcs alone"):
        OPENERS[name](folder, verify_crc=True, check_crcs=True)


def test_the_default_of_check_crcs_is_shown_as_true() -> None:
    for function in (kcodec.decode, kcodec.open):
        assert "check_crcs=True" in str(inspect.signature(function)).replace(": 'bool' = ", "=")


@pytest.mark.parametrize("name", READERS)
def test_on_corrupt_is_on_error(name: str) -> None:
    assert call(READERS[name], on_error="skip")[1] == []
    caught = call(READERS[name], on_corrupt="skip")[1]
    assert {str(one.message) for one in caught} == {"on_corrupt is deprecated: use on_error"}
    if not name.startswith("aio"):
        assert_points_here(caught[:1], "on_corrupt is deprecated: use on_error")
    with pytest.raises(TypeError, match="on_corrupt is the deprecated name of on_error: pass on_error alone"):
        READERS[name](on_error="raise", on_corrupt="raise")
    with pytest.raises(ValueError, match="on_error must be one of raise, skip, not 'stop'"):
        READERS[name](on_error="stop")


@pytest.mark.parametrize("name", ["offset_fetch_highest_version", "txn_offset_commit_highest_version"])
def test_removed_options_of_consumers_only_warn(name: str) -> None:
    options: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", name: 2}
    with pytest.warns(DeprecationWarning, match=f"{name} has no effect any more: .* kcodec.broker.Broker") as caught:
        Consumer(**options).close()
    assert [one.filename for one in caught] == [__file__]


def test_the_spark_option_verify_crc_is_check_crcs() -> None:
    assert parse_options({"path": "a", "checkcrcs": "false"}).check_crcs is False
    options, caught = call(parse_options, {"path": "a", "VerifyCrc": "false"})
    assert options.check_crcs is False
    assert [str(one.message) for one in caught] == ["verifyCrc is deprecated: use checkCrcs"]
    with pytest.raises(TypeError, match="pass checkCrcs alone"):
        parse_options({"path": "a", "verifyCrc": "true", "checkCrcs": "true"})
