# SPDX-License-Identifier: Apache-2.0
"""Wait until the members of a group have left."""

from __future__ import annotations

import time

from kcodec.client import Admin

#: A fraction of the session timeout of 45 seconds, for which a member that has not left would keep its partitions.
SOON = 10.0
_PAUSE_SECONDS = 0.005


def is_left_soon(admin: Admin, group_id: str) -> bool:
    """Return whether the group has no members after at most SOON seconds. An interrupted client waits only 0.2 seconds
    for the response to its request to leave, so that the coordinator may handle the request later."""
    limit = time.monotonic() + SOON
    while admin.describe_groups([group_id])[group_id].members:
        if time.monotonic() >= limit:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
