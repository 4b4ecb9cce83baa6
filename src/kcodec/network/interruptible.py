# SPDX-License-Identifier: Apache-2.0
"""Waits of the main thread that Ctrl-C always ends, whatever signal handlers other libraries install.

Python raises KeyboardInterrupt when its main thread runs again. The signal does not wake that thread if the system
delivers it to another one, or if a library has installed a handler with SA_RESTART, as polars does. Therefore the main
thread waits in short steps.
"""

from __future__ import annotations

import threading

#: Longest step of a wait of the main thread.
STEP_SECONDS = 0.25


def step_seconds(left: float | None, is_checked: bool = False) -> float | None:
    """Return the timeout of the next step of a wait with `left` seconds left; None for no limit.

    is_checked: Whether threads other than the main thread also wait in steps.
    """
    if not is_checked and threading.current_thread() is not threading.main_thread():
        return left
    return STEP_SECONDS if left is None else min(left, STEP_SECONDS)
