# SPDX-License-Identifier: Apache-2.0
"""Whether an installed kcodec works: what is asked of every wheel, in an environment with nothing else in it.

    python tests/smoke.py

Needs no pytest and no compiler, and does without pyarrow even where it is installed. Ends with one line and 0, or with
the exception that says what failed.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kcodec
from kcodec import ControlType
from kcodec.log import Log

ROWS = 300
TIME = 1_767_225_600_000


def rows() -> list[dict[str, Any]]:
    """Nulls, empty fields, headers, text that is not ASCII, values of many sizes."""
    return [
        {
            "key": None if number % 7 == 0 else b"key %d" % number,
            "value": None if number % 11 == 0 else b"value %d " % number * (number % 13),
            "headers": [("h", b"1"), ("naïve", None)] if number % 3 == 0 else [],
            "timestamp": TIME + number,
        }
        for number in range(ROWS)
    ]


def check_round_trip(codec: kcodec.Compression) -> int:
    """What was encoded comes back, on one thread and on two, in each layout; the bytes encoded."""
    wanted = rows()
    data = bytes(kcodec.encode(wanted, compression=codec, base_offset=40, max_batch_bytes=4096))
    for options in ({}, {"threads": 2}, {"binary_type": "large_binary"}, {"binary_type": "binary_view"}):
        decoded = kcodec.decode(data, **options)
        found = [(record.key, record.value, list(record.headers), record.timestamp) for record in decoded.records()]
        assert found == [(row["key"], row["value"], row["headers"], row["timestamp"]) for row in wanted], codec
        assert (decoded.counts.records, decoded.next_offset) == (ROWS, 40 + ROWS)
        assert [record.offset for record in decoded.records()] == list(range(40, 40 + ROWS))
    return len(data)


def check_transactions() -> None:
    """Aborted records are left out, committed ones are not."""
    written = []
    offset = 0
    for producer_id, control_type in ((1, ControlType.ABORT), (2, ControlType.COMMIT)):
        batch = kcodec.encode(
            [(b"k", b"of %d" % producer_id, (), TIME)],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        marker = kcodec.encode_end_transaction_marker(
            control_type,
            base_offset=offset + 1,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=TIME,
        )
        written += [bytes(batch), bytes(marker)]
        offset += 2
    decoded = kcodec.decode(b"".join(written), isolation_level="read_committed")
    assert list(decoded.column("value")) == [b"of 2"]
    assert decoded.counts.aborted == 1


def check_damage() -> None:
    """A wrong byte is a DecodeError, not a record."""
    data = bytearray(bytes(kcodec.encode(rows())))
    data[200] ^= 1
    try:
        kcodec.decode(data)
    except kcodec.CorruptBatchError:
        return
    raise AssertionError("a wrong CRC went unnoticed")


def check_files_and_command_line() -> None:
    """A log file is read, and `python -m kcodec` shows it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{0:020}.log")
        path.write_bytes(bytes(kcodec.encode(rows(), base_offset=0, compression="zstd")))
        log = kcodec.open(path)
        assert isinstance(log, Log) and len(list(log.records())) == ROWS
        command = [sys.executable, "-m", "kcodec", "dump", str(path)]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "zstd" in done.stdout


def main() -> int:
    sizes = {str(codec): check_round_trip(codec) for codec in kcodec.Compression}
    check_transactions()
    check_damage()
    check_files_and_command_line()
    from kcodec._fast import crc32c_path_names

    built = "free-threaded " if not getattr(sys, "_is_gil_enabled", lambda: True)() else ""
    python = f"{built}{platform.python_implementation()} {platform.python_version()}"
    where = f"{python} on {platform.system()} {platform.machine()}"
    print(f"smoke test passed: kcodec {kcodec.__version__}, {where}, CRC by {crc32c_path_names()[0]}, {sizes}")
    return 0


if __name__ == "__main__":
    # an import of it fails, as where it is not installed; kcodec itself imports it late
    sys.modules["pyarrow"] = None  # type: ignore[assignment]
    sys.exit(main())
