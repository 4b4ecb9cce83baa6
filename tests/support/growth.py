# SPDX-License-Identifier: Apache-2.0
"""Inputs of n, 2n and 4n small parts, to check that the time and memory for reading them grows linearly.

SHAPES: name -> function(n) -> function without arguments that reads n parts; creating the parts is not measured

python growth.py NAME [PARTS]    prints as JSON, for PARTS, 2 x and 4 x as many: processor seconds and bytes
                                       of memory, each in a forked process
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from batch_writer import RecordSpec, build_batch, build_record, compress, end_transaction_marker, varint
from bombs import batch_of, many_compressed_records, many_headers, many_records, peak_bytes

Reading = Callable[[], object]


def _decoding(data: bytes, **options: object) -> Reading:
    import kcodec

    return functools.partial(kcodec.decode, data, **options)  # type: ignore[arg-type]


def _record(value: bytes = b"v") -> bytes:
    return build_record(RecordSpec(value=value), 0)


def gzip_members(count: int) -> Reading:
    """Empty members of 20 bytes."""
    member = gzip.compress(b"", mtime=0)
    return _decoding(batch_of(member * (20 * count) + gzip.compress(_record(), mtime=0), 1, "gzip"))


def gzip_small_members(count: int) -> Reading:
    """Members of a byte each, which make one record together."""
    record = _record(bytes(5 * count))
    members = [gzip.compress(bytes([byte]), 1, mtime=0) for byte in range(256)]
    return _decoding(batch_of(b"".join(members[byte] for byte in record), 1, "gzip"))


def gzip_incompressible(count: int) -> Reading:
    """One member that is as long as its decompressed data."""
    return _decoding(batch_of(compress("gzip", _record(random.Random(1).randbytes(2000 * count))), 1, "gzip"))


def zstd_frames(count: int) -> Reading:
    """Empty frames of 9 bytes."""
    empty = b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"
    return _decoding(batch_of(empty * (10 * count) + compress("zstd", _record()), 1, "zstd"))


def lz4_blocks(count: int) -> Reading:
    """Stored blocks of a byte."""
    record = _record(bytes(100 * count))
    head = compress("lz4", b"")[:7]
    body = b"".join(struct.pack("<I", 0x80000001) + bytes([byte]) for byte in record)
    return _decoding(batch_of(head + body + bytes(4), 1, "lz4"))


def snappy_blocks(count: int) -> Reading:
    """Blocks of a byte in xerial's framing."""
    record = _record(bytes(100 * count))
    body = b"".join(struct.pack(">i", 3) + b"\x01\x00" + bytes([byte]) for byte in record)
    return _decoding(batch_of(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + body, 1, "snappy"))


def tiny_records(count: int) -> Reading:
    """Uncompressed records of seven bytes."""
    return _decoding(many_records(7 * 200 * count))


def rising_records(count: int) -> Reading:
    """Compressed records of seven to ten bytes, all columns as views."""
    import kcodec

    columns = tuple(name for name in kcodec.COLUMNS if name not in ("topic", "partition"))
    return _decoding(many_compressed_records(400 * count), columns=columns, binary_type="binary_view")


def empty_headers(count: int) -> Reading:
    """Headers of two bytes in one record."""
    return _decoding(many_headers(400 * count))


def invalid_header_names(count: int) -> Reading:
    """Headers of one byte that is not UTF-8, in one record."""
    fields = b"\x00\x00\x00\x01\x01" + varint(100 * count) + b"\x02\xff\x01" * (100 * count)
    return _decoding(batch_of(varint(len(fields)) + fields, 1))


def control_batches(count: int) -> Reading:
    """Transactions of one record, which end with their markers."""
    data = []
    for at in range(count):
        producer: dict[str, Any] = {"producer_id": at, "producer_epoch": 0, "is_transactional": True}
        data.append(build_batch([RecordSpec(value=b"v")], base_offset=2 * at, **producer))
        data.append(end_transaction_marker(at % 2, producer_id=at, base_offset=2 * at + 1))
    return _decoding(b"".join(data), isolation_level="read_committed")


def damaged_batches(count: int) -> Reading:
    """Every second batch has a wrong CRC and is skipped."""
    made = [
        build_batch([RecordSpec(value=b"v")], base_offset=at, crc=None if at % 2 == 0 else 1) for at in range(count)
    ]
    return _decoding(b"".join([*made, build_batch([RecordSpec(value=b"v")], base_offset=count)]), on_error="skip")


def _messages(count: int, magic: int) -> Reading:
    from legacy_writer import MessageSpec, build_wrapper

    return _decoding(build_wrapper([MessageSpec(value=b"v", magic=magic)] * (2 * count), magic=magic))


def wrapped_messages_0(count: int) -> Reading:
    """Messages of magic 0 in a compressed one."""
    return _messages(count, 0)


def wrapped_messages_1(count: int) -> Reading:
    """Messages of magic 1 in a compressed one."""
    return _messages(count, 1)


def topic_column(count: int) -> Reading:
    """A topic of 249 characters for each of many small records."""
    from kcodec._fast import decode_fetch

    return functools.partial(
        decode_fetch, many_compressed_records(400 * count), topic="t" * 249, partition=0, start_offset=0
    )


# messages of the protocol: a struct for each element, texts, numbers, tagged fields


def _metadata(topics: bytes, count: int) -> Reading:
    """A MetadataResponse of version 12 with these topics."""
    from kcodec.protocol.messages import MetadataResponse

    body = struct.pack(">i", 0) + b"\x01" + b"\x00" + struct.pack(">i", 1) + _length(count) + topics + b"\x00"
    return functools.partial(MetadataResponse.decode, body, 12)


def _length(count: int) -> bytes:
    out, rest = bytearray(), count + 1
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _topic(partitions: bytes = b"\x01", tags: bytes = b"\x00") -> bytes:
    name = b"\x02t"
    return b"\x00\x00" + name + bytes(16) + b"\x00" + partitions + struct.pack(">i", 0) + tags


def message_structs(count: int) -> Reading:
    """Topics without partitions."""
    return _metadata(_topic() * (10 * count), 10 * count)


def message_numbers(count: int) -> Reading:
    """The replicas of one partition."""
    replicas = _length(200 * count) + struct.pack(">i", 1 << 20) * (200 * count)
    partition = b"\x00\x00" + struct.pack(">iii", 0, 0, 0) + replicas + b"\x01\x01\x00"
    return _metadata(_topic(_length(1) + partition), 1)


def message_texts(count: int) -> Reading:
    """The topics that a member of a group subscribes to."""
    from kcodec.protocol.messages import ConsumerGroupHeartbeatRequest

    names = _length(50 * count) + b"\x04abc" * (50 * count)
    head = b"\x02g" + b"\x02m" + struct.pack(">i", 0) + b"\x00" + b"\x00" + struct.pack(">i", 1)
    return functools.partial(ConsumerGroupHeartbeatRequest.decode, head + names + b"\x00" + b"\x00" + b"\x00", 0)


def message_unknown_tags(count: int) -> Reading:
    """Unknown tagged fields without bytes, in one struct."""
    tags = _length(50 * count - 1) + b"".join(_length(999 + at % 9000) + b"\x00" for at in range(50 * count))
    return _metadata(_topic(tags=tags), 1)


def message_tagged_structs(count: int) -> Reading:
    """An unknown tagged field in each of many structs."""
    return _metadata(_topic(tags=b"\x01\x7f\x01x") * (10 * count), 10 * count)


SHAPES: dict[str, Callable[[int], Reading]] = {
    function.__name__: function
    for function in (
        *(gzip_members, gzip_small_members, gzip_incompressible, zstd_frames, lz4_blocks, snappy_blocks),
        *(tiny_records, rising_records, empty_headers, invalid_header_names, control_batches, damaged_batches),
        *(wrapped_messages_0, wrapped_messages_1, topic_column),
        *(message_structs, message_numbers, message_texts, message_unknown_tags, message_tagged_structs),
    )
}


def measured(reading: Reading) -> tuple[float, int]:
    """Processor seconds of the fastest of three readings, and memory that the first one added, in a forked process."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        before = peak_bytes()
        took = []
        result = None
        peak = 0
        for _ in range(3):
            result = None
            began = time.process_time()
            result = reading()
            took.append(time.process_time() - began)
            peak = peak or peak_bytes() - before
        os.write(send, json.dumps((min(took), peak, result is not None)).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as answer:
        seconds, peak, _ = json.loads(answer.read())
    os.waitpid(child, 0)
    return seconds, peak


def main() -> None:
    """Prints the measurements of one shape."""
    name, parts = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    print(json.dumps([measured(SHAPES[name](parts * factor)) for factor in (1, 2, 4)]))


if __name__ == "__main__":
    main()
