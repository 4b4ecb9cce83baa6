# SPDX-License-Identifier: Apache-2.0
"""Calls that a signal handler interrupts, at any point where Python may run one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """What the handler of Ctrl-C raises here."""


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Make a call, and raise Interrupted at one of the points where Python runs the handlers of signals: where a Python
    function begins, and after a call of a compiled one. Return whether there are as many points.

    Garbage collection is off during the call: it would run, and interrupt, the finalizers of clients of earlier calls.
    """
    left = at

    def profile(frame: FrameType, event: str, function: object) -> None:
        nonlocal left
        if event in {"call", "c_return"}:
            left -= 1
            if left < 0:
                raise Interrupted

    gc.disable()
    sys.setprofile(profile)  # which an error in `profile` resets
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


@contextmanager
def ctrl_c(event: str, name: str, file: str, caller: str = "") -> Iterator[list[str]]:
    """Raise KeyboardInterrupt once in this thread: at a "call" of this function, or after the "c_return" of it. Without
    a name, any function of the file counts."""
    hits: list[str] = []

    def look(frame: FrameType, kind: str, argument: Any) -> None:
        function = frame.f_code.co_name if kind == "call" else getattr(argument, "__name__", "")
        outer = frame.f_back if kind == "call" else frame
        is_caller = not caller or (outer is not None and outer.f_code.co_name == caller)
        if kind == event and name in {"", function} and frame.f_code.co_filename.endswith(file) and is_caller:
            sys.setprofile(None)
            hits.append(function)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        yield hits
    finally:
        sys.setprofile(None)
