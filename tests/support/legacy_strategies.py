# SPDX-License-Identifier: Apache-2.0
"""Generated messages of magic 0 and 1, for strategies.py and the tests compared with Kafka's classes.

    random_message(random, magic, offset) -> bytes
    random_wrapper(random, magic, base_offset) -> (bytes, next offset)      right, of any codec and flavour, gaps too
    random_wrong_wrapper(random, magic, base_offset) -> bytes               right CRCs outside, mostly refused
    random_messages(random, base_offset) -> (bytes, next offset)            some of all these that are right

`random` is a `random.Random`, seeded or hypothesis' own.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable
from dataclasses import replace

from batch_writer import FLAVOURS
from edits import random_edit
from legacy_writer import TIMESTAMP, MessageSpec, build_message, build_wrapper, fix_message_crc

Random = random_module.Random
CODECS = ("gzip", "snappy", "lz4")
INT64_MAX = (1 << 63) - 1


def _payload(random: Random) -> bytes | None:
    size = random.choice((0, 1, 5, 12, 13, 40, 700))
    return (
        None
        if random.randrange(8) == 0
        else bytes(random.randrange(256) for _ in range(min(size, 9))) * (size // 9 + 1)
    )


def random_spec(random: Random, magic: int) -> MessageSpec:
    """Return the contents of one message. About one in ten has an unusual encoding."""
    spec = MessageSpec(_payload(random), _payload(random), magic, TIMESTAMP + random.randrange(1000))
    if random.randrange(10):
        return spec
    return replace(
        spec,
        timestamp=random.choice((-1, 0, INT64_MAX, -INT64_MAX - 1)),
        attributes=random.choice((0, 0x70, 0x80, 0xF0, 8)),
        null_size=random.choice((-1, -2, -(1 << 31))),
        behind=random.choice((b"", b"behind")),
    )


def random_message(random: Random, magic: int, offset: int) -> bytes:
    """One plain message."""
    spec = random_spec(random, magic)
    return build_message(replace(spec, attributes=spec.attributes | random.choice((0, 0, 8 * magic))), offset)


def _specs(random: Random, magic: int, base_offset: int) -> list[MessageSpec]:
    """Messages of a wrapper, now and then with gaps, or with one of the other magic among them."""
    specs, inside = [], 0
    has_gaps = random.randrange(3) == 0
    for _ in range(random.randint(1, 6)):
        spec = random_spec(random, 1 - magic if random.randrange(10) == 0 else magic)
        specs.append(replace(spec, offset=inside + (0 if magic else base_offset)))
        inside += random.randint(1, 4) if has_gaps else 1
    return specs


def random_wrapper(random: Random, magic: int, base_offset: int, *, linked: bool = True) -> tuple[bytes, int]:
    """Return a valid wrapper and the offset after it. One in ten of magic 1 has offset 0, from which its messages
    count.

    linked: with lz4 frames of linked blocks, which Java rejects.
    """
    specs = _specs(random, magic, base_offset)
    last = (specs[-1].offset or 0) + (base_offset if magic else 0)
    codec = random.choice(CODECS)
    says_nothing = magic == 1 and random.randrange(10) == 0
    data = build_wrapper(
        specs,
        magic=magic,
        compression=codec,
        flavour=random.choice([flavour for flavour in FLAVOURS[codec] if linked or "linked" not in flavour]),
        offset=0 if says_nothing else last,
        attributes=random.choice((0, 0, 0, 8, 0x70)),
        key=random.choice((None, None, b"a key")),
        behind=random.choice((b"", b"", b"behind")),
    )
    return data, last + 1


def _scrambled(random: Random, is_right: bool) -> Callable[[bytes], bytes]:
    """Edit the messages inside. The CRC of the edited message is corrected in most cases."""

    def edit(messages: bytes) -> bytes:
        return random_edit(random, messages, repair=is_right)[1]

    return edit


def random_wrong_wrapper(random: Random, magic: int, base_offset: int) -> bytes:
    """Return an invalid wrapper: edits below the compression, nesting, no messages, wrong offsets or codecs."""
    specs = _specs(random, magic, base_offset)
    last = (specs[-1].offset or 0) + (base_offset if magic else 0)
    codec = random.choice(CODECS)
    kind = random.randrange(8)
    if kind == 0:
        at = random.randrange(len(specs))
        specs[at] = replace(specs[at], attributes=random.choice((1, 2, 3, 4, 7)))
    elif kind == 1:
        return build_wrapper([], magic=magic, compression=codec, offset=last)
    elif kind == 2:
        message = MessageSpec(None, random.choice((None, b"", b"no stream")), magic, attributes=random.randint(1, 7))
        return build_message(message, last)
    elif kind == 3:
        last = random.choice((0, 1, (specs[-1].offset or 0) - 1, -1, -INT64_MAX - 1, INT64_MAX))
    elif kind == 4:
        at = random.randrange(len(specs))
        specs[at] = replace(specs[at], offset=random.choice((0, 5, -1, INT64_MAX, -INT64_MAX - 1)))
    edit = _scrambled(random, is_right=random.randrange(4) > 0) if kind > 4 else None
    return build_wrapper(specs, magic=magic, compression=codec, offset=last, edit_set=edit)


def random_messages(random: Random, base_offset: int, *, linked: bool = True) -> tuple[bytes, int]:
    """A few messages and wrappers of one magic, and the offset behind them."""
    data, magic = b"", random.randrange(2)
    for _ in range(random.randint(1, 3)):
        if random.randrange(2):
            data, base_offset = data + random_message(random, magic, base_offset), base_offset + 1
        else:
            wrapper, base_offset = random_wrapper(random, magic, base_offset, linked=linked)
            data += wrapper
    return data, base_offset


def damaged_message(random: Random, message: bytes) -> bytes:
    """One to three edits of a message, its CRC right in most cases."""
    edited = random_edit(random, message, repair=False)[1]
    return fix_message_crc(edited) if random.random() < 0.9 else edited
