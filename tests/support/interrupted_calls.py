# SPDX-License-Identifier: Apache-2.0
"""Calls that a signal handler interrupts, at any point where Python may run one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


class Interrupted(BaseException):
    """What a handler of a signal raises, as KeyboardInterrupt is."""


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Make a call, and raise Interrupted at one of the points where Python runs the handlers of signals: where a Python
    function begins, and after a call of a compiled one. Return whether there are as many points."""
    left = at

    def profile(frame: FrameType, event: str, function: object) -> None:
        nonlocal left
        if event in {"call", "c_return"}:
            left -= 1
            if left < 0:
                raise Interrupted

    sys.setprofile(profile)  # which an error in `profile` resets
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False
