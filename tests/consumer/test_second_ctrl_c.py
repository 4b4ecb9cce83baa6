# SPDX-License-Identifier: Apache-2.0
"""A second Ctrl-C in asyncio, anywhere in the code that leaves a group: the member does not stay."""

from __future__ import annotations

import random

import pytest
from left_groups import is_left_soon
from second_ctrl_c import run_consumer

from kcodec.broker import Broker
from kcodec.client import Admin

#: Number of points at which a program is interrupted. prove_programs.py takes all of them in turn.
PROGRAMS = 40
#: More points than the code that leaves has.
MOST_POINTS = 3000


# Some of the points are in __del__ of a closed client, where Python reports and ignores every exception.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. .function ClientBase.__del__:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_leaves_after_a_second_ctrl_c(kcodec_broker: Broker, protocol: str) -> None:
    topic = kcodec_broker.create_topic()
    points, interruptions = random.Random(1), 0
    with Admin(bootstrap_servers=kcodec_broker.bootstrap_servers) as admin:
        for number in range(PROGRAMS):
            group_id, at = f"{topic}-{number}", points.randrange(MOST_POINTS)
            interruptions += run_consumer(kcodec_broker.bootstrap_servers, topic, group_id, at, group_protocol=protocol)
            assert is_left_soon(admin, group_id), f"interrupted at {at}"
    assert interruptions > PROGRAMS / 2
