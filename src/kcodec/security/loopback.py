# SPDX-License-Identifier: Apache-2.0
"""Which hosts are this machine: what is sent to them in the clear does not cross a network."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine, by the name alone: nothing is looked up."""
    if host.lower().rstrip(".") in {"localhost", "localhost.localdomain"}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
