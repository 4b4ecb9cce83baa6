# SPDX-License-Identifier: Apache-2.0
"""What the sync and async Admin share: construction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kcodec.cluster.retry_driver import AdminError, Asking
from kcodec.network.client import Client
from kcodec.network.options import ClientConfig, refuse_unknown
from kcodec.security import SECURITY_OPTIONS

__all__ = ["AdminError", "asking_of"]


def asking_of(options: Mapping[str, Any]) -> tuple[Client, Asking]:
    """A client of these options and what its flows work with. TypeError, ValueError for wrong options."""
    given = dict(options)
    taken = ClientConfig.take(given)
    refuse_unknown(given, {*ClientConfig.names(), *SECURITY_OPTIONS}, "Admin")
    client = Client(taken)
    client.cluster.allow_auto_topic_creation = False
    return client, Asking(client.cluster, taken.default_api_timeout_ms / 1000, lambda: time.time_ns() // 1_000_000)
