# SPDX-License-Identifier: Apache-2.0
"""A relay of examples/outbox.py that kills itself (SIGKILL) at one of its steps, for tests.

python tests/support/outbox_relay.py STEP [options of examples/outbox.py]        STEP: one of STEPS, or "never"
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "examples"))

import outbox

from kcodec.client import Producer, Transaction

# In the order in which a relay executes them; "committing" is at any moment of the few milliseconds of a commit.
STEPS = ("initialised", "opened", "read", "sent", "offsets", "committing", "committed", "forgotten")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str) -> None:
    """Die when this method has returned."""
    original: Callable[..., Any] = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if not (name == "rows_after" and not found[0]):
            die()
        return found

    setattr(owner, name, dying)


def before(owner: Any, name: str, act: Callable[[], object]) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def acting(*args: Any, **kwargs: Any) -> Any:
        act()
        return original(*args, **kwargs)

    setattr(owner, name, acting)


def arm(step: str) -> None:
    kinds = (outbox.SqliteOutbox, outbox.PostgresOutbox)
    if step == "initialised":
        after(Producer, "init_transactions")
    elif step == "opened":
        after(outbox.Relay, "open")
    elif step == "read":
        for kind in kinds:
            after(kind, "rows_after")
    elif step == "sent":
        after(Transaction, "send")
    elif step == "offsets":
        for kept in (outbox.GroupProgress, outbox.TopicProgress):
            after(kept, "write")
    elif step == "committing":
        before(Transaction, "__exit__", lambda: threading.Timer(random.uniform(0.0, 0.03), die).start())
    elif step == "committed":
        after(Transaction, "__exit__")
    elif step == "forgotten":
        after(outbox.Relay, "publish")


if __name__ == "__main__":
    arm(sys.argv.pop(1))
    outbox.main()
