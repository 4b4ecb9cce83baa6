# SPDX-License-Identifier: Apache-2.0
"""Stories of a log that grows while it is read, for the tests of follow=True.

A test writes inside the reader: Script is its `stop`, which is called before each check of the log and after each
chunk, and executes one step each time. So nothing depends on the speed of a thread.

BATCHES                                      twelve batches of three records, offsets 0 to 35
appending(path, content) -> a step           pieces(content, size) -> iterator of bytes
cleaning(directory, first, *others, removed) -> a step, as the log cleaner does it
follow(path, script, level, **options) -> offsets that came
file_of(directory, base_offset=0) -> Path of the segment
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from log_files import plain
from opened_logs import open_log

import kcodec

QUICK = 0.0005
BATCHES = [plain(at * 3, count=3, size=20 + 50 * (at % 7)) for at in range(12)]


class Script:
    """A `stop` that executes one step each time it is called, and stops some calls after the last step."""

    def __init__(self, *steps: Callable[[], Any], looks: int = 4) -> None:
        self._steps = iter(steps)
        self._looks = looks

    def __call__(self) -> bool:
        step = next(self._steps, None)
        if step is not None:
            step()
            return False
        self._looks -= 1
        return self._looks < 0


def appending(path: Path, content: bytes) -> Callable[[], None]:
    def append() -> None:
        with path.open("ab") as file:
            file.write(content)

    return append


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


def follow(path: Path, script: Callable[[], bool], level: str = "read_uncommitted", **options: Any) -> list[int]:
    records = open_log(path).records(level, **{"follow": True, "poll_interval": QUICK, "stop": script, **options})
    return [record.offset for record in records]


def cleaned(content: bytes, removed: Collection[int]) -> bytes:
    return kcodec.filter_to(content, lambda batch, record: batch.is_control_batch or record.offset not in removed)


def cleaning(directory: Path, first: int, *others: int, removed: Collection[int]) -> Callable[[], None]:
    """Return a step that replaces these segments by one segment without the removed records."""

    def clean() -> None:
        content = b"".join(file_of(directory, base).read_bytes() for base in (first, *others))
        modified = file_of(directory, [first, *others][-1]).stat().st_mtime_ns
        swap = file_of(directory, first).with_suffix(".log.swap")
        swap.write_bytes(cleaned(content, removed))
        os.utime(swap, ns=(modified, modified))
        for base in others:
            file_of(directory, base).unlink()
        swap.replace(file_of(directory, first))

    return clean


def file_of(directory: Path, base_offset: int = 0) -> Path:
    return directory / f"{base_offset:020d}.log"
