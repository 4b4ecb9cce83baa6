# SPDX-License-Identifier: Apache-2.0
"""Runs ``kcodec`` for tests: in this process, or as a program of its own where signals and pipes matter.

run(*arguments) -> Ran(status, out, err)       out: str, as bytes in .data
rows(ran) -> list of dicts                     what it wrote with -J; it must have succeeded
program(*arguments, **options) -> Popen        python -m kcodec, stdout and stderr piped
orders(folder) -> Path                         a partition directory orders-0, copied from the golden archive
long_partition(folder, batches, count=1000, size=100) -> Path
same_as_golden(text, name)                     compares with tests/golden_cli/NAME; KCODEC_WRITE_GOLDEN=1: write it
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import golden_data
from log_files import partition as write_partition
from log_files import plain

from kcodec.cli import ExitStatus, main
from kcodec.cli.output import Output

HERE = Path(__file__).resolve().parent.parent
GOLDEN = HERE / "golden_cli"
ORDERS = "txn-java-0"


@dataclass(frozen=True)
class Ran:
    status: ExitStatus
    data: bytes
    err: str

    @property
    def out(self) -> str:
        return self.data.decode("utf-8", "surrogateescape")


def run(*arguments: str | Path) -> Ran:
    stdout, stderr = io.BytesIO(), io.StringIO()
    status = main([str(argument) for argument in arguments], Output(stdout, stderr))
    return Ran(status, stdout.getvalue(), stderr.getvalue())


def rows(ran: Ran) -> list[dict[str, Any]]:
    assert ran.status is ExitStatus.OK, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def program(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kcodec", *map(str, arguments)]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})


def partition(name: str, cluster: str = "tv2") -> Path:
    return golden_data.root() / cluster / "logs" / name


def orders(folder: Path) -> Path:
    copied = folder / "orders-0"
    if not copied.exists():
        shutil.copytree(partition(ORDERS), copied)
    return copied


def long_partition(folder: Path, batches: int, count: int = 1000, size: int = 100) -> Path:
    """Write a partition of one segment, in which the same batch is repeated at rising offsets."""
    batch = plain(0, count, size)
    return write_partition(folder, [struct.pack(">q", at * count) + batch[8:] for at in range(batches)])


def same_as_golden(text: str, name: str) -> bool:
    """Return whether the text equals the file. With KCODEC_WRITE_GOLDEN=1 the file is written, for review."""
    path = GOLDEN / name
    if os.environ.get("KCODEC_WRITE_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert text == path.read_bytes().decode("utf-8", "surrogateescape")
    return True
