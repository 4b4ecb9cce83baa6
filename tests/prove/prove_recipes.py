# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/recipes.md under kills, for many rounds.

    python tests/prove/prove_recipes.py [--rounds 4] [--results FOLDER]

In each round every program is killed (SIGKILL) at each of its steps, and once more at a random time; between the kills
more comes in. In the end totals, output and changelog hold each change once, balances are right, positions are at the
end of the log. Next to it are the controls: a position written unconditionally, and a sum in place of an upsert.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "support"), str(HERE.parent / "src")]

from postgres_server import PostgresServer  # noqa: E402
from recipe_inputs import COUNTING, Bank, prices, read_prices, read_until  # noqa: E402
from recipe_worker import STEPS, example  # noqa: E402
from recipes import (  # noqa: E402
    SECONDS,
    Amounts,
    StoreCase,
    add_amounts,
    committed,
    end,
    reader_arguments,
    start_worker,
    wait_stopped,
    write_amounts,
)

from kcodec.testing.kafka import ApacheKafka  # noqa: E402

GRACE_SECONDS = 8.0


class Rounds:
    """Kills one program at its steps, in an order of their own each round."""

    def __init__(self, name: str, arguments: Sequence[object], rng: random.Random) -> None:
        self.name, self.arguments, self.rng = name, arguments, rng
        self.ended: Counter[str] = Counter()

    def run(self) -> None:
        steps = [*STEPS[self.name], "never"]
        self.rng.shuffle(steps)
        for step in steps:
            worker = start_worker(self.name, step, self.arguments)
            seconds = self.rng.uniform(0.7, 2.0) if step == "never" else GRACE_SECONDS
            try:
                worker.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:  # at no step in time: nothing had come in for it
                end(worker)
            self.ended["killed at a step" if step != "never" and worker.returncode == -9 else "killed by time"] += 1


def store_rounds(kafka: ApacheKafka, folder: Path, rounds: int, rng: random.Random) -> str:
    case = StoreCase(kafka, folder, "store")
    killing = Rounds("local_store", case.arguments(), rng)
    for number in range(rounds):
        add_amounts(kafka, case.amounts, 9, seed=number)
        killing.run()
    case.drain()
    case.assert_exact(folder)
    changes = sum(map(len, case.amounts.history.values()))
    return f"local store: {changes} changes, {dict(killing.ended)}; output and changelog hold each once, in order"


def bank_rounds(kafka: ApacheKafka, folder: Path, server: PostgresServer, rounds: int, rng: random.Random) -> list[str]:
    reported = []
    places: tuple[tuple[str, list[object]], ...] = (
        ("SQLite", ["--sqlite", folder / "b.db"]),
        ("PostgreSQL", ["--postgres", server.new_database()]),
    )
    for kind, place in places:
        amounts, bank = write_amounts(kafka), Bank(place)
        name = f"bank-{kind}-{amounts.topic}"
        killing = Rounds("offsets_in_database", reader_arguments(kafka, place, name, amounts.topic), rng)
        for number in range(rounds):
            add_amounts(kafka, amounts, 9, seed=number)
            killing.run()
            stopped_and_woken(kafka, bank, name, amounts)
        read_until(kafka, bank, name, amounts)
        assert bank.balances() == amounts.totals
        records = sum(map(len, amounts.history.values()))
        reported.append(f"position in {kind}: {records} records, {dict(killing.ended)}, {rounds} owners stopped: exact")
    return reported


def stopped_and_woken(kafka: ApacheKafka, bank: Bank, name: str, amounts: Amounts) -> None:
    """One owner stands still with what it has polled while another goes on, and is then woken."""
    add_amounts(kafka, amounts, 3, seed=99)
    first = start_worker(
        "offsets_in_database", "ready", reader_arguments(kafka, bank.place, name, amounts.topic), "SIGSTOP"
    )
    try:
        wait_stopped(first)
        read_until(kafka, bank, name, amounts)
        first.send_signal(18)  # SIGCONT
        time.sleep(1.0)
    finally:
        end(first)
    assert bank.balances() == amounts.totals


def upsert_rounds(kafka: ApacheKafka, folder: Path, rounds: int, rng: random.Random) -> list[str]:
    amounts = write_amounts(kafka)
    module = example("upsert")
    latest = None
    path = folder / "prices.db"
    ended: Counter[str] = Counter()
    for number in range(rounds):
        add_amounts(kafka, amounts, 9, seed=number)
        for step in STEPS["upsert"]:
            group = f"upsert-{number}-{step}-{amounts.topic}"  # each from the beginning: all comes again
            worker = start_worker("upsert", step, [path, kafka.bootstrap_servers, group, amounts.topic])
            worker.communicate(timeout=SECONDS)
            ended[f"killed at {step}"] += worker.returncode == -9
    found = {}
    for name, statement in (("upsert", module.UPSERT), ("control", COUNTING)):
        with closing(sqlite3.connect(path if name == "upsert" else folder / "control.db")) as connection:
            connection.execute(module.SCHEMA)
            for turn in range(2):
                read_prices(kafka, f"{name}-{turn}-{amounts.topic}", amounts.topic, connection, statement)
            found[name] = prices(connection)
    latest = {key.decode(): int(values[-1] or 0) for key, values in committed(kafka, amounts.topic).items()}
    assert found["upsert"] == latest
    over = sum(found["control"].values()) / sum(amounts.totals.values())
    assert over > 1
    return [
        f"upsert: {dict(ended)}: exact",
        f"control (a sum in place of the upsert, read twice): {over:.2f} times the truth",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="the recipes under kills")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    given = parser.parse_args()
    began, rng = time.monotonic(), random.Random(given.rounds)
    with ApacheKafka() as kafka, PostgresServer() as server, tempfile.TemporaryDirectory() as folder:
        lines = [
            store_rounds(kafka, Path(folder), given.rounds, rng),
            *bank_rounds(kafka, Path(folder), server, given.rounds, rng),
            *upsert_rounds(kafka, Path(folder), given.rounds, rng),
        ]
    lines.append(f"{given.rounds} rounds, {time.monotonic() - began:.0f} s")
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "recipes.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
