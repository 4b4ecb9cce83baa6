# SPDX-License-Identifier: Apache-2.0
"""Compares an internal record with the output of Kafka's own classes for it."""

from __future__ import annotations

from typing import Any

Truth = dict[str, Any]


def squeezed(reported: Any) -> Any:
    """Return Kafka's and kcodec's names in the same form: without underscores, in lower case."""
    if isinstance(reported, dict):
        return {name.replace("_", "").lower(): squeezed(value) for name, value in reported.items()}
    return [squeezed(one) for one in reported] if isinstance(reported, list) else reported


def check_record(shown: dict[str, Any], truth: Truth) -> None:
    assert "error" not in shown, (shown, truth)
    control = truth.get("control")
    if control is not None:
        value = control.get("value", {"coordinatorEpoch": control.get("coordinatorEpoch")})
        assert (shown["type"], squeezed(shown["value"])) == (control["type"], squeezed(value))
        return
    key, value = truth["decodedKey"], truth["decodedValue"]
    if key is None:
        assert shown["type"] == value["type"]
        assert "key" not in shown
    else:
        assert squeezed(shown["key"]) == squeezed(key["data"])
    if value == "<DELETE>":
        assert shown["value"] is None
        assert "version" not in shown
        return
    assert shown["version"] == int(value["version"])
    state = (shown["value"] or {}).pop("transaction_state", None)
    assert (state is not None) == (shown["type"] == "TransactionLog")
    assert squeezed(shown["value"]) == squeezed(value["data"])
