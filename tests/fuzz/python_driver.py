# SPDX-License-Identifier: Apache-2.0
"""A coverage-guided driver for the targets in python_targets.py, with the words of driver.c.

    python tests/fuzz/python_driver.py TARGET --replay PATH...
    python tests/fuzz/python_driver.py TARGET --seconds N --seed N --longest N --finds FOLDER PATH...
    python tests/fuzz/python_driver.py TARGET --shrink FOLDER PATH...

Coverage is the lines of kcodec's Python that follow one another. The input at work is in FOLDER/at-work, as driver.c
leaves it; one that takes ten seconds is a hang.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from python_targets import TARGETS

HANG_SECONDS = 10
SOURCE = "/kcodec/"
ODD = (0, 1, 2, 7, 46, 127, 128, 255, 256, 32767, 32768, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63)
WORDS = (
    b"0",
    b"-1",
    b"1",
    b"\n",
    b"\r\n",
    b" ",
    b"=",
    b":",
    b"\\",
    b"\\u00",
    b"#",
    b"9223372036854775808",
    b"\xff",
    b"\t",
)


class Coverage:
    """Which lines followed which, in kcodec's own code, while a function ran."""

    def __init__(self) -> None:
        self.arcs: set[tuple[CodeType, int, int]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if event != "call" or SOURCE not in frame.f_code.co_filename:
            return None
        code, before = frame.f_code, 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            if event == "line":
                self.arcs.add((code, before, frame.f_lineno))
                before = frame.f_lineno
            return line

        return line

    def of(self, target: Callable[[bytes], None], data: bytes) -> set[tuple[CodeType, int, int]]:
        """The arcs of one input."""
        self.arcs = set()
        signal.alarm(HANG_SECONDS)
        sys.settrace(self)
        try:
            target(data)
        finally:
            sys.settrace(None)
            signal.alarm(0)
        return self.arcs


def read(paths: Iterable[Path]) -> list[bytes]:
    """Every file, and every file of every folder."""
    found = []
    for path in paths:
        found += [file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()] if path.is_dir() else []
        found += [path.read_bytes()] if path.is_file() else []
    return found


def change(chooser: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    """One change at random."""
    place = chooser.randrange(len(data) + 1)
    kind = chooser.randrange(8)
    if kind == 0 and data:
        place = min(place, len(data) - 1)
        return data[:place] + bytes([data[place] ^ 1 << chooser.randrange(8)]) + data[place + 1 :]
    if kind == 1:
        width = chooser.choice((1, 2, 4, 8))
        value = (chooser.choice(ODD) + chooser.randint(-1, 1)) % (1 << 8 * width)
        return data[:place] + value.to_bytes(width, "big") + data[place + width :]
    if kind == 2:
        width = chooser.choice((1, 2, 4, 8))
        value = (int.from_bytes(data[place : place + width], "big") + chooser.randint(-40, 40)) % (1 << 8 * width)
        return data[:place] + value.to_bytes(width, "big") + data[place + width :]
    if kind == 3:
        return data[:place] + data[place + chooser.randint(1, 12) :]
    if kind == 4:
        return data[:place] + bytes(chooser.randrange(256) for _ in range(chooser.randint(1, 8))) + data[place:]
    if kind == 5:
        return data[:place] + data[place : place + chooser.randint(1, 40)] + data[place:]
    if kind == 6:
        return data[:place] + chooser.choice(WORDS) + data[place + chooser.choice((0, 0, 1)) :]
    other = chooser.choice(corpus)
    begin = chooser.randrange(len(other) + 1)
    return data[:place] + other[begin : begin + chooser.randint(1, 40)] + data[place:]


def hunt(target: Callable[[bytes], None], corpus: list[bytes], options: argparse.Namespace) -> int:
    chooser, coverage = random.Random(options.seed), Coverage()
    seen: set[Any] = set()
    for data in corpus:
        seen |= coverage.of(target, data)
    corpus = corpus or [b""]
    end, runs, finds = time.monotonic() + options.seconds, len(corpus), 0
    with (options.finds / "at-work").open("wb", buffering=0) as at_work:
        while time.monotonic() < end:
            data = chooser.choice(corpus[-24:] if chooser.randrange(2) else corpus)
            for _ in range(chooser.randint(1, 5)):
                data = change(chooser, data, corpus)[: options.longest]
            at_work.seek(0)
            at_work.write(struct.pack("=I", len(data)) + data)
            arcs = coverage.of(target, data)
            runs += 1
            if not arcs <= seen:
                seen |= arcs
                finds += 1
                corpus.append(data)
                (options.finds / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    print(f"{runs} inputs, {finds} of them new, {len(seen)} places reached, nothing found")
    return 0


def shrink(target: Callable[[bytes], None], corpus: list[bytes], folder: Path) -> int:
    coverage, kept = Coverage(), 0
    seen: set[Any] = set()
    for data in sorted(corpus, key=lambda data: (len(data), data)):
        arcs = coverage.of(target, data)
        if not arcs <= seen:
            seen |= arcs
            kept += 1
            (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    print(f"{kept} of {len(corpus)} inputs kept, {len(seen)} places")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="coverage-guided fuzzing of Python readers")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--finds", type=Path)
    parser.add_argument("--shrink", type=Path)
    parser.add_argument("paths", type=Path, nargs="*")
    options = parser.parse_intermixed_args()
    target, corpus = TARGETS[options.target], read(options.paths)
    if options.shrink:
        return shrink(target, corpus, options.shrink)
    if options.finds:
        return hunt(target, corpus, options)
    for data in corpus:
        target(data)
    print(f"{len(corpus)} inputs replayed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
