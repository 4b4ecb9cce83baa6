# SPDX-License-Identifier: Apache-2.0
"""A broker for each module, a new topic for each test, and the two sets of clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kcodec.broker import Broker

if TYPE_CHECKING:
    from aiokafka_kits import Kit

_numbers = itertools.count()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with Broker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture(params=["aiokafka", "kcodec"])
def kit(request: pytest.FixtureRequest, servers: str) -> Kit:
    """Run the test with aiokafka's clients, and with those of the facade."""
    from aiokafka_kits import kit_of

    return kit_of(request.param, servers)


@pytest.fixture
def ours(servers: str) -> Kit:
    """Run the test with the clients of the facade only."""
    from aiokafka_kits import kit_of

    return kit_of("kcodec", servers)
