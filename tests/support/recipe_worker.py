# SPDX-License-Identifier: Apache-2.0
"""A program of examples/ that kills itself (SIGKILL) or stops (SIGSTOP) at a step of its way, for tests.

python recipe_worker.py EXAMPLE STEP SIGNAL [options of the example]    STEP: one of STEPS[EXAMPLE], or "never"
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"

# In the order of the program's way; "ending" is anywhere in the few milliseconds of a commit.
STEPS = {
    "local_store": ("opened", "restored", "polled", "put", "sent", "ending", "committed", "stored"),
    "offsets_in_database": ("taken", "polled", "ready", "applied", "moved", "committed"),
    "upsert": ("polled", "written", "committed"),
}


def example(name: str) -> Any:
    """The module of an example."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def end_by(number: signal.Signals) -> None:
    """Once: who was stopped and is woken goes on."""
    if not ENDED.is_set():
        ENDED.set()
        os.kill(os.getpid(), number)


ENDED = threading.Event()


def after(owner: Any, name: str, act: Callable[[], object], is_due: Callable[[Any], bool] = lambda found: True) -> None:
    """Act when this function has returned something that is due."""
    original: Callable[..., Any] = getattr(owner, name)

    def acting(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if is_due(found):
            act()
        return found

    setattr(owner, name, acting)


def before(owner: Any, name: str, act: Callable[[], object]) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def acting(*args: Any, **kwargs: Any) -> Any:
        act()
        return original(*args, **kwargs)

    setattr(owner, name, acting)


def arm_local_store(step: str, act: Callable[[], object]) -> None:
    from kcodec.client.session import SessionTransaction

    module = example("local_store")
    if step == "opened":
        after(module.Totals, "__init__", act)
    elif step == "restored":
        after(module.Store, "restore", act)
    elif step == "polled":
        after(SessionTransaction, "poll", act, bool)
    elif step == "put":
        after(module.Store, "put", act)
    elif step == "sent":
        after(SessionTransaction, "send", act, lambda delivery: delivery.topic == sys.argv[sys.argv.index("--to") + 1])
    elif step == "ending":
        before(SessionTransaction, "__exit__", lambda: threading.Timer(random.uniform(0.0, 0.03), act).start())
    elif step == "committed":
        before(module.Store, "commit", act)
    elif step == "stored":
        after(module.Store, "commit", act)


def arm_offsets_in_database(step: str, act: Callable[[], object]) -> None:
    module = example("offsets_in_database")
    if step == "taken":
        after(module.Reader, "take_over", act)
    elif step == "polled":
        after(module.Consumer, "poll", act, bool)
    elif step in ("ready", "careless"):
        before(module, "transaction", act)
        if step == "careless":
            module.Positions.move = careless_move
    elif step == "applied":
        after(module, "add_to_balance", act)
    elif step == "moved":
        after(module.Positions, "move", act)
    elif step == "committed":
        after(module.Reader, "step", act)


def careless_move(self: Any, partition: Any, before: int | None, after: int) -> None:
    """A position that is written whatever stands there: the control."""
    self._execute("DELETE FROM kafka_position WHERE topic = ? AND partition = ?", *partition)
    self._execute(self.BEGIN, self._name, *partition, after)


def arm_upsert(step: str, act: Callable[[], object]) -> None:
    module = example("upsert")
    if step == "polled":
        after(module.Consumer, "poll", act, bool)
    elif step == "written":
        before(module.Consumer, "commit", act)
    elif step == "committed":
        after(module.Consumer, "commit", act)


def main() -> None:
    name, step, by = sys.argv[1:4]
    del sys.argv[1:4]
    number = signal.Signals[by]
    arming = {"local_store": arm_local_store, "offsets_in_database": arm_offsets_in_database, "upsert": arm_upsert}
    arming[name](step, lambda: end_by(number))
    module = example(name)
    module.main(*sys.argv[1:]) if name == "upsert" else module.main()


if __name__ == "__main__":
    main()
