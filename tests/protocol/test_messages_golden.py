# SPDX-License-Identifier: Apache-2.0
"""Every frame that was captured between Kafka 4.3.1 and its clients: read as Kafka's own converters printed it, and
written again byte for byte. Each is also cut at every byte, and each of its bytes is changed."""

from __future__ import annotations

import os
from random import Random

import pytest
import reference_messages
from golden_data import CLUSTERS, root
from golden_frames import frames, response_header_size
from message_edits import difference

from kcodec.errors import TruncatedError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

LONG = os.environ.get("KCODEC_PROFILE") == "long"
# Bytes that take every place of a frame; of larger frames a limited number of places, chosen again each time.
CHANGED_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
PLACES = 1 << 20 if LONG else 300


def test_every_captured_frame_is_here() -> None:
    """But for the three exchanges in a version of ApiVersions that the broker did not know."""
    captured = sum(1 for cluster in CLUSTERS for path in (root() / "wire" / cluster).glob("*/*.re[qs]"))
    assert len(frames()) == captured - 6


def test_an_unknown_version_is_answered_in_version_0() -> None:
    answers = sorted((root() / "wire" / "tv2").glob("*/*api-versions-v5.res"))
    answers += sorted((root() / "wire" / "tv2").glob("*/*version-99.res"))
    assert len(answers) == 3
    for path in answers:
        answer = messages.ApiVersionsResponse.decode(path.read_bytes(), 0, response_header_size(0))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (18, 0, 4) in [(one.api_key, one.min_version, one.max_version) for one in answer.api_keys]


def test_every_frame_is_read_as_kafka_printed_it_and_written_again() -> None:
    wrong = []
    for frame in frames():
        message = frame.kind.decode(frame.body, frame.version)
        wrong += [f"{frame}: {one}" for one in reference_messages.differences(message, frame.reported, frame.version)]
        if message.encode(frame.version) != frame.body:
            wrong.append(f"{frame}: written otherwise")
        if reference_messages.decode(frame.kind, frame.body, frame.version) != message:
            wrong.append(f"{frame}: the reference reads it otherwise")
    assert wrong == []


def places(size: int, random: Random) -> list[int]:
    return list(range(size)) if size <= PLACES else sorted(random.sample(range(size), PLACES))


@pytest.mark.parametrize("part", range(4))
def test_frames_cut_at_every_byte(part: int) -> None:
    random = Random(part)
    for frame in frames()[part::4]:
        for size in places(len(frame.body), random):
            with pytest.raises(TruncatedError) as caught:
                frame.kind.decode(memoryview(frame.body)[:size], frame.version)
            assert caught.value.needed > caught.value.available


@pytest.mark.parametrize("part", range(4))
def test_frames_with_changed_bytes(part: int) -> None:
    """Read or refused as the reference does; what is read can be written, and is then read the same."""
    random = Random(100 + part)
    for frame in frames()[part::4][:: 1 if LONG else 5]:
        for place in places(len(frame.body), random)[:100]:
            changed = bytearray(frame.body)
            changed[place] = random.choice(CHANGED_BYTES)
            assert difference(frame.kind, bytes(changed), frame.version) is None, (frame.name, changed)
