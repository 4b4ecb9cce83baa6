# SPDX-License-Identifier: Apache-2.0
"""Every command on edited golden files of every kind: an answer, never an exception, and a fitting exit status."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from cli_runner import partition, run

from kcodec.cli import ExitStatus

ANSWERS = (ExitStatus.OK, ExitStatus.FINDINGS, ExitStatus.ERROR)
FILES = (
    "txn-java-0/00000000000000000058.log",
    "txn-java-0/00000000000000000058.index",
    "txn-java-0/00000000000000000058.timeindex",
    "txn-java-0/00000000000000000058.txnindex",
    "txn-java-0/00000000000000000058.snapshot",
    "txn-java-0/leader-epoch-checkpoint",
    "txn-java-0/partition.metadata",
    "log-start-offset-checkpoint",
    "meta.properties",
    "__cluster_metadata-0/00000000000000000450-0000000001.checkpoint",
)


def edited(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        if not changed:
            break
        at = draw.randrange(len(changed))
        way = draw.randrange(4)
        if way == 0:
            changed[at] = draw.randrange(256)
        elif way == 1:
            del changed[at : at + draw.randrange(1, 20)]
        elif way == 2:
            changed[at:at] = draw.randbytes(draw.randrange(1, 20))
        else:
            del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("name", FILES)
def test_edited_files(name: str, tmp_path: Path) -> None:
    source = partition(name)
    path = tmp_path / source.name
    draw = random.Random(name)
    for _ in range(25):
        path.write_bytes(edited(source.read_bytes(), draw))
        for call in (["dump"], ["dump", "--json"], ["check"]):
            ran = run(*call, path)
            assert ran.status in ANSWERS
            assert ran.status is ExitStatus.OK or ran.err


@pytest.mark.parametrize("seed", range(12))
def test_edited_partitions(seed: int, tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    shutil.copytree(partition("txn-java-0"), directory)
    draw = random.Random(seed)
    for path in draw.sample(sorted(directory.iterdir()), 8):
        path.write_bytes(edited(path.read_bytes(), draw))
    calls = [
        *(["dump"], ["dump", "--records"], ["check"], ["cat"], ["cat", "--read-committed", "-J"], ["cat", "-o", "-5"]),
        *(["cat", "--on-error", "skip"], ["cat", "-o", "s@1767225600100"], ["txn", "list"], ["txn", "timeline"]),
        *(["convert", "-o", str(tmp_path / f"o.{kind}")] for kind in ("csv", "parquet", "log")),
        ["convert", "--on-error", "skip", "--read-committed", "-o", str(tmp_path / "s.log")],
    ]
    for call in calls:
        ran = run(*call, directory)
        assert ran.status in ANSWERS
        assert ran.status is ExitStatus.OK or ran.err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_edited_internal_topics(tmp_path: Path) -> None:
    for name in ("__consumer_offsets-0", "__transaction_state-0"):
        directory = tmp_path / name
        shutil.copytree(partition(name), directory)
        draw = random.Random(name)
        log = next(directory.glob("*.log"))
        whole = log.read_bytes()
        for _ in range(5):
            log.write_bytes(edited(whole, draw))
            for call in (["cat", "--on-error", "skip", "-c", "200"], ["txn", "list"]):
                ran = run(*call, directory)
                assert ran.status in ANSWERS
                assert ran.status is ExitStatus.OK or ran.err
