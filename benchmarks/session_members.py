# SPDX-License-Identifier: Apache-2.0
"""Consumers of kcodec as members of groups, in a separate process, with the commands of tests/java/GroupMember.java:

members = OurMembers()
members.start("a", servers, "group", "topic", "consumer")
members.state("a")      # {"owned": [partition, ...], "firsts": {partition: seconds of time.monotonic()}}
members.stop("a")
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any


class _Member:
    """A consumer and the thread that polls it."""

    def __init__(self, servers: str, group: str, topic: str, protocol: str) -> None:
        from kcodec.client import Consumer

        self.owned: set[int] = set()
        self.firsts: dict[int, float] = {}
        self.is_over = False
        self.failure: str | None = None
        self.consumer = Consumer(
            bootstrap_servers=servers, group_id=group, group_protocol=protocol, auto_offset_reset="earliest"
        )
        self.consumer.subscribe([topic], on_assigned=self._assigned, on_revoked=self._revoked)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _assigned(self, partitions: Any) -> None:
        for each in partitions:
            self.firsts.pop(each.partition, None)
            self.owned.add(each.partition)

    def _revoked(self, partitions: Any) -> None:
        self.owned -= {each.partition for each in partitions}

    def _run(self) -> None:
        try:
            while not self.is_over:
                records = self.consumer.poll(0.1)
                now = time.monotonic()
                for record in records:
                    if record.partition not in self.firsts:
                        self.firsts[record.partition] = now
            self.consumer.close()
        except BaseException as error:
            self.failure = repr(error)
            raise

    def state(self) -> dict[str, Any]:
        return {"owned": sorted(self.owned), "firsts": sorted(self.firsts.items()), "failure": self.failure}

    def stop(self) -> None:
        self.is_over = True
        self.thread.join(20.0)


def serve() -> None:
    """For each line on stdin, a JSON list with a command, print a line with its JSON result."""
    members: dict[str, _Member] = {}
    for line in sys.stdin:
        command, name, *rest = json.loads(line)
        answer: Any = None
        if command == "start":
            members[name] = _Member(*rest)
        elif command == "state":
            answer = members[name].state()
        else:
            members.pop(name).stop()
        print(json.dumps(answer), flush=True)


class OurMembers:
    """Starts a process that runs `serve`, and sends it commands."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)
        self._lock = threading.Lock()

    def _ask(self, *question: Any) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with self._lock:
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
            return json.loads(self._child.stdout.readline())

    def start(self, name: str, servers: str, group: str, topic: str, protocol: str) -> None:
        self._ask("start", name, servers, group, topic, protocol)

    def state(self, name: str) -> dict[str, Any]:
        found = self._ask("state", name)
        if found["failure"] is not None:
            raise RuntimeError(f"{name}: {found['failure']}")
        return {"owned": found["owned"], "firsts": dict(found["firsts"])}

    def stop(self, name: str) -> None:
        self._ask("stop", name)

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


if __name__ == "__main__":
    serve()
