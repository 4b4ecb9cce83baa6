# SPDX-License-Identifier: Apache-2.0
"""check() over directories with edited files: it always ends with findings, never with an error of its own."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import golden_data
import pytest
from batch_writer import fix_crc
from opened_logs import open_log

import kcodec
from kcodec.log import check_file
from kcodec.log.check.findings import CODES

LONG = os.environ.get("KCODEC_PROFILE") == "long"
EDITS = 300 if LONG else 8
NAMES = ("txn-mixed-0", "compact-txn-0", "deleted-txn-0", "raw-odd-0", "idem-java-0", "txn-open-0")


def edited(raw: bytes, dice: random.Random) -> bytes:
    """Bits flipped, bytes set to extremes, a piece cut out, doubled, zeroed, or put in from elsewhere."""
    data = bytearray(raw or b"\0")
    at = dice.randrange(len(data))
    size = dice.choice((1, 2, 4, 8, 40))
    kind = dice.randrange(6)
    if kind == 0:
        data[at] ^= 1 << dice.randrange(8)
    elif kind == 1:
        data[at : at + size] = dice.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * size
    elif kind == 2:
        del data[at : at + size]
    elif kind == 3:
        data[at:at] = data[at : at + size]
    elif kind == 4:
        data = data[:at]
    else:
        other = dice.randrange(len(data))
        data[at : at + size] = data[other : other + size]
    return bytes(data)


def edit_batch(raw: bytes, dice: random.Random) -> bytes:
    """The same within one batch whose CRC is made right again, so that what lies behind it is reached."""
    batches = list(kcodec.batches(raw))
    batch = dice.choice(batches)
    begin, end = batch.position, batch.position + batch.size_in_bytes
    data = bytearray(raw)
    for _ in range(dice.randrange(1, 4)):
        data[dice.randrange(begin + 21, end)] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    return bytes(data[:begin]) + fix_crc(bytes(data[begin:end])) + bytes(data[end:])


@pytest.mark.parametrize("name", NAMES)
def test_edited_directories_give_findings_and_nothing_else(name: str, tmp_path: Path) -> None:
    partition = next(one for one in golden_data.partitions() if one.name == name)
    files = sorted(path.name for path in partition.path.iterdir())
    segments = [file for file in files if file.endswith(".log") and (partition.path / file).stat().st_size]
    dice = random.Random(name)
    found_something = 0
    for number in range(EDITS):
        directory = tmp_path / str(number) / name
        shutil.copytree(partition.path, directory)
        for _ in range(dice.randrange(1, 4)):
            if dice.random() < 0.5:
                path = directory / dice.choice(segments)
                path.write_bytes(edit_batch((partition.path / path.name).read_bytes(), dice))
            else:
                path = directory / dice.choice(files)
                path.write_bytes(edited(path.read_bytes(), dice))
        found = open_log(directory).check()
        found_something += bool(found)
        for one in found:
            assert one.code in CODES
            assert Path(one.path).parent == directory
            assert str(one)
        for path in directory.iterdir():
            assert {one.path for one in check_file(path)} <= {str(path)} | {str(one) for one in directory.iterdir()}
        try:
            states = open_log(directory).producer_states
        except kcodec.DecodeError as error:
            assert error.path is not None
        else:
            assert all(state.producer_id >= 0 for state in states)
        shutil.rmtree(directory)
    assert found_something > EDITS // 2
