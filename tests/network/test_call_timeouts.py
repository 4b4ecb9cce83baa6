# SPDX-License-Identifier: Apache-2.0
"""Every public call with a timeout ends by it, whichever response is withheld: exactly, in virtual time.

The same in real time, through a proxy: test_call_timeouts_broker.py, and all of it in prove_call_timeouts.py.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from timed_calls import CALLS, NOT_ASYNC, Stage, covered_calls, public_calls, seed_topics
from virtual_client import VirtualTime

import kcodec.client
import kcodec.client.aio
from kcodec.errors import KcodecError
from kcodec.protocol import messages
from kcodec.testing.kafka import ApacheKafka

TIMEOUT = 2.0
#: As of a broker that has stopped.
EVERYTHING = frozenset(name.removesuffix("Request") for name in dir(messages) if name.endswith("Request"))
#: Calls that ask no broker for anything.
SILENT = {"Admin.close", "SharedTransactions.close"}


def test_no_call_with_a_timeout_is_forgotten() -> None:
    """The public classes are searched for them, the asyncio ones too; there a Delivery is awaited instead."""
    assert covered_calls() == public_calls(kcodec.client)
    assert public_calls(kcodec.client.aio) == covered_calls() - NOT_ASYNC


def run(kafka: ApacheKafka, name: str, protocol: str, withheld: frozenset[str]) -> tuple[float, list[str]]:
    """How long a call takes, and the APIs that it asks."""
    seed_topics(kafka)
    with pytest.MonkeyPatch.context() as patch:
        world = VirtualTime()
        world.install(patch)
        stage = Stage(kafka, kcodec.client, kafka.bootstrap_servers, TIMEOUT, protocol)
        call = CALLS[name](stage)
        began = world.now
        world.withheld = withheld
        with suppress(KcodecError, RuntimeError):
            call()
        seconds = world.now - began
        asked = [api for when, api in world.asked if when >= began]
        world.withheld = frozenset()
        stage.close()
    return seconds, list(dict.fromkeys(asked))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_ends_exactly_by_its_timeout(apache_kafka: ApacheKafka, name: str) -> None:
    protocols = ["classic", "consumer"] if name.startswith(("Consumer", "Group", "Session")) else ["classic"]
    for protocol in protocols:
        seconds, asked = run(apache_kafka, name, protocol, frozenset())
        assert seconds <= TIMEOUT + 1e-6
        assert asked or name in SILENT
        taken = {api: run(apache_kafka, name, protocol, frozenset({api}))[0] for api in asked}
        taken["all"] = run(apache_kafka, name, protocol, EVERYTHING)[0]
        late = {api: seconds for api, seconds in taken.items() if seconds > TIMEOUT + 1e-6}
        assert not late, f"timeout {TIMEOUT:g} s, {protocol}"
        assert name in SILENT or max(taken.values()) > TIMEOUT / 8, f"no response was waited for: {taken}"
