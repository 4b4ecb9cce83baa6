# SPDX-License-Identifier: Apache-2.0
"""Every public call with a timeout ends within it and one second of real time, while a proxy withholds responses.

Exactly, in virtual time: test_call_timeouts.py. In the long form, and in prove_call_timeouts.py, asyncio too.
"""

from __future__ import annotations

import os

import pytest
from prove_call_timeouts import FACES, late, measure
from timed_calls import CALLS

from kcodec.testing.kafka import ApacheKafka

TIMEOUT = 1.0
IS_LONG = os.environ.get("KCODEC_PROFILE", "short") == "long"
#: Calls of several steps, and one of each kind of the others: the rest differ in the request only.
CHOSEN = {name for name in CALLS if IS_LONG or not name.startswith("Admin") or "find" in name or "lag" in name}


@pytest.mark.parametrize("face", FACES if IS_LONG else FACES[:1])
def test_calls_end_within_their_timeout(apache_kafka: ApacheKafka, face: str) -> None:
    found = measure(apache_kafka, [face], TIMEOUT, CHOSEN)
    assert not [one.line() for one in late(found, TIMEOUT)]
    assert len(found) > 2 * len(CHOSEN)
