# SPDX-License-Identifier: Apache-2.0
"""What the handlers of administration need from the broker."""

from __future__ import annotations

from typing import Protocol

from kcodec.broker.api import Listener
from kcodec.broker.settings import BrokerSettings
from kcodec.broker.topics import Topics


class AdminHost(Protocol):
    """What the handlers use of the broker. `listeners` are the addresses where clients connect."""

    settings: BrokerSettings
    topics: Topics
    listeners: list[Listener]
