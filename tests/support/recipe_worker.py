# SPDX-License-Identifier: Apache-2.0
"""A program of examples/ that kills itself (SIGKILL) or stops (SIGSTOP) at one of its steps, for tests.

python recipe_worker.py EXAMPLE STEP SIGNAL [options of the example]    STEP: one of STEPS[EXAMPLE], or "never"
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"

# In the order in which the program executes them; "ending" is at any moment of the few milliseconds of a commit.
STEPS = {
    "local_store": ("opened", "restored", "polled", "put", "sent", "ending", "committed", "stored"),
    "offsets_in_database": ("taken", "polled", "ready", "applied", "moved", "committed"),
    "upsert": ("polled", "written", "committed"),
    "dead_letters": ("polled", "sent", "ending", "committed"),
    "parallel_partition": ("worked",),
    "offsets_in_delta": ("polled", "ready", "writing", "committed"),
}


def example(name: str) -> Any:
    """The module of an example."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def end_by(number: signal.Signals) -> None:
    """Send the signal once: a stopped program that is continued does not stop again."""
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


def careless_move(self: Any, partition: Any, before: Any, after: Any) -> None:
    """The control: write a position without checking the stored one."""
    self._execute("DELETE FROM kafka_position WHERE topic = ? AND partition = ?", *partition)
    self._execute(self.BEGIN, self._name, *partition, *after)


def arm_upsert(step: str, act: Callable[[], object]) -> None:
    module = example("upsert")
    if step == "polled":
        after(module.Consumer, "poll", act, bool)
    elif step == "written":
        before(module.Consumer, "commit", act)
    elif step == "committed":
        after(module.Consumer, "commit", act)


def arm_dead_letters(step: str, act: Callable[[], object]) -> None:
    from kcodec.client.session import SessionTransaction

    module = example("dead_letters")
    if step == "polled":
        after(SessionTransaction, "poll", act, bool)
    elif step == "sent":
        after(SessionTransaction, "send", act)
    elif step == "ending":
        before(SessionTransaction, "__exit__", lambda: threading.Timer(random.uniform(0.0, 0.03), act).start())
    elif step == "committed":
        after(module.Processor, "step", act, bool)


#: The environment variable with the file of the effects of parallel_partition, and the effects before its end.
EFFECTS, EFFECTS_BEFORE_END = "RECIPE_EFFECTS", 25


def arm_parallel_partition(step: str, act: Callable[[], object]) -> None:
    """Its work writes the value of a record into a file. "careless", the control, commits what it has polled."""
    module = example("parallel_partition")
    count = itertools.count(1)

    def work(record: Any) -> None:
        time.sleep(0.2 if record.value == b"3" else 0.01)  # this record is completed after later ones
        with Path(os.environ[EFFECTS]).open("ab", buffering=0) as file:
            file.write(record.value + b"\n")
        if next(count) == EFFECTS_BEFORE_END:
            act()

    module.fetch = work
    if step == "careless":
        module.ParallelConsumer.commit = lambda self: self.consumer.commit()


def arm_offsets_in_delta(step: str, act: Callable[[], object]) -> None:
    module = example("offsets_in_delta")
    if step == "polled":
        after(module.Consumer, "poll_arrow", act, lambda found: len(found) > 0)
    elif step == "ready":
        before(module, "write_deltalake", act)
    elif step == "writing":  # while the table is written, when its files exist and it is not, or just, committed
        before(module, "write_deltalake", start_watcher)
    elif step == "committed":
        after(module, "write_deltalake", act)


#: Kills a process once a folder has another file of rows. A thread would wait for the lock of the interpreter.
WATCHER = """
import os, sys
folder, process = sys.argv[1], int(sys.argv[2])
count = lambda: sum(name.endswith(".parquet") for name in os.listdir(folder))
before = count()
print("ready", flush=True)
while count() == before:
    pass
os.kill(process, 9)
"""


def start_watcher() -> None:
    command = [sys.executable, "-S", "-c", WATCHER, sys.argv[1], str(os.getpid())]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert watcher.stdout is not None and watcher.stdout.readline() == b"ready\n"


def main() -> None:
    name, step, by = sys.argv[1:4]
    del sys.argv[1:4]
    number = signal.Signals[by]
    arming = {
        "local_store": arm_local_store,
        "offsets_in_database": arm_offsets_in_database,
        "upsert": arm_upsert,
        "dead_letters": arm_dead_letters,
        "parallel_partition": arm_parallel_partition,
        "offsets_in_delta": arm_offsets_in_delta,
    }
    arming[name](step, lambda: end_by(number))
    module = example(name)
    module.main(*sys.argv[1:]) if name == "upsert" else module.main()


if __name__ == "__main__":
    main()
