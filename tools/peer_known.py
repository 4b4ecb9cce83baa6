# SPDX-License-Identifier: Apache-2.0
"""Tests of other clients that are known to fail or to be skipped on one node, and the reason of each."""

from __future__ import annotations

import fnmatch

from peer_clients import Result

#: Client -> pattern of a test's name -> reason.
KNOWN: dict[str, dict[str, str]] = {"aiokafka": {}, "kafka-python": {}, "franz-go": {}}
#: The same for runs with the facade of kcodec in place of the client.
KNOWN_WITH_FACADE: dict[str, dict[str, str]] = {}


def known_reason(client: str, result: Result, kind: str) -> str | None:
    """Return why a test is known not to pass; None if it should. kind: "own" or "kcodec"."""
    patterns = {**KNOWN.get(client, {}), **(KNOWN_WITH_FACADE.get(client, {}) if kind == "kcodec" else {})}
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(result.test, pattern)), None)
