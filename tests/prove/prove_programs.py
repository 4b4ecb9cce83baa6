# SPDX-License-Identifier: Apache-2.0
"""Random ordinary programs with the consumers of one group: each record is processed, and each reader leaves the group.

    python tests/prove/prove_programs.py [--kinds consumer asyncio ctrl-c] [--programs 150] [--seed N] [--faults]
        [--results F]

tests/support/random_programs.py says what the programs do. Those of the kind "ctrl-c" always do the same, and get a
second Ctrl-C at evenly spaced points (tests/support/second_ctrl_c.py). The broker is the embedded one. With --faults,
requests also fail at random. A lost response to JoinGroup is not among these faults, because the coordinator then waits
for a member whose id no client has received. The exit status is 0 if all held. The results are appended to
programs-DATE.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from left_groups import is_left_soon
from program_readers import ConsumerReader, read_rest, run_async_program, run_program
from random_programs import World, add_faults
from second_ctrl_c import run_consumer
from transaction_load import add_results

from kcodec.broker import Broker
from kcodec.client import Admin

KINDS = ("consumer", "asyncio")
CTRL_C = "ctrl-c"
#: About the number of points in the code that leaves a group.
POINTS = 2600
LAST_STEPS = 30


def run_one(kind: str, seed: int, broker: Broker) -> World:
    """Run one program of this kind to its end."""
    world = World(seed, broker.bootstrap_servers)
    if kind == "asyncio":
        asyncio.run(run_async_program(world))
    else:
        run_program(world, ConsumerReader)
    read_rest(world)
    return world


def run_with_ctrl_c(programs: int) -> tuple[str, int]:
    """Interrupt programs twice, at different points. Return a line about them and the number of wrong ones."""
    begin, wrong, interrupts = time.monotonic(), 0, 0
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        broker.seed("orders", [b"1"])
        for number in range(programs):
            at, group_id = number * POINTS // programs, f"group-{number}"
            protocol = ("classic", "consumer")[number % 2]
            interrupts += run_consumer(broker.bootstrap_servers, "orders", group_id, at, group_protocol=protocol)
            if not is_left_soon(admin, group_id):
                wrong += 1
                print(f"{CTRL_C}, protocol {protocol}, at {at}: the member has stayed in its group", flush=True)
    seconds = time.monotonic() - begin
    return f"{CTRL_C:9} {programs} programs, {wrong} wrong; {interrupts} interrupted twice [{seconds:.0f} s]", wrong


def main() -> int:
    """Return 0 if every program met its conditions, otherwise 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=(*KINDS, CTRL_C), choices=(*KINDS, CTRL_C))
    parser.add_argument("--programs", type=int, default=150, help="of each kind")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first program")
    parser.add_argument("--faults", action="store_true", help="requests fail at random")
    parser.add_argument("--results", type=Path, help="folder of programs-DATE.txt, which is added to")
    arguments = parser.parse_args()
    bad = 0
    for kind in arguments.kinds:
        if kind == CTRL_C:
            line, wrong = run_with_ctrl_c(arguments.programs)
            bad += wrong
            print(line, flush=True)
            add_results(arguments.results, "programs", [line])
            continue
        begin, processed, interrupts, wrong = time.monotonic(), 0, 0, 0
        with Broker() as broker:
            if arguments.faults:
                add_faults(broker, arguments.seed)
            for seed in range(arguments.seed, arguments.seed + arguments.programs):
                world = run_one(kind, seed, broker)
                processed += len(world.processed)
                interrupts += world.interrupts
                if faults := world.faults():
                    wrong += 1
                    print(f"{kind}, seed {seed}: {'; '.join(faults)}")
                    print(*world.steps[-LAST_STEPS:], sep="\n    ", flush=True)
        bad += wrong
        requests = ", requests fail" if arguments.faults else ""
        line = (
            f"{kind:9} {arguments.programs} programs{requests}, {wrong} wrong; {processed} records processed, "
            f"{interrupts} calls interrupted [{time.monotonic() - begin:.0f} s]"
        )
        print(line, flush=True)
        add_results(arguments.results, "programs", [line])
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
