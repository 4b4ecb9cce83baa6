# SPDX-License-Identifier: Apache-2.0
"""Batches of every codec, whole and incomplete, at the end of a page that is followed by an unreadable page."""

from __future__ import annotations

import ctypes
import mmap
from operator import itemgetter
from typing import Any

from batch_writer import FLAVOURS, RecordSpec, build_batch
from edits import with_payload
from legacy_writer import MessageSpec, build_message, build_wrapper

GOOD = build_batch([RecordSpec(value=b"first"), RecordSpec(value=b"second")])


RECORDS = [RecordSpec(key=b"k%d" % at, value=b"value %d" % at, headers=((b"h", b"x"),)) for at in range(3)]


def batch(**header: Any) -> bytes:
    return build_batch(header.pop("records", RECORDS), **{"base_offset": 10, **header})


def at_the_end_of_memory(data: bytes) -> tuple[mmap.mmap, memoryview]:
    """The bytes directly before a page that cannot be read."""
    page = mmap.PAGESIZE
    size = (len(data) + page - 1) // page * page + page
    memory = mmap.mmap(-1, size)
    memory[size - page - len(data) : size - page] = data
    view = memoryview(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + size - page), ctypes.c_size_t(page), 0) == 0
    return memory, view[size - page - len(data) : size - page]


def every_payload() -> list[bytes]:
    """Batches of each codec, whole, cut, and with records or streams that end too early."""
    found: list[bytes] = []
    for codec in FLAVOURS:
        whole = batch(compression=codec)
        found += [whole, GOOD + whole[:-1], whole[:60], whole[:26], b""]
        found += [with_payload(whole, whole[61:size]) for size in range(61, len(whole), 2)]
    long = batch(
        records=[RecordSpec(key=bytes(range(40)), value=b"y" * size) for size in (1, 15, 16, 17, 31, 32, 33, 300)]
    )
    found += [long, *[with_payload(long, long[61:size]) for size in range(61, len(long), 7)]]
    for magic, codec in ((0, "lz4"), (1, "snappy"), (1, "gzip")):
        specs = [MessageSpec(b"k" * 20, b"v" * 40, magic), MessageSpec(magic=magic)]
        for cut in range(0, 100, 3):
            found.append(build_wrapper(specs, magic=magic, compression=codec, edit_set=itemgetter(slice(cut, None))))
        message = build_message(specs[0])
        found += [message, message[:25], message[:30], message[:11] + b"\x0e" + message[12:26]]
    return found
