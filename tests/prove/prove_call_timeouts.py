# SPDX-License-Identifier: Apache-2.0
"""Every public call with a timeout, in front of a real broker whose responses a proxy withholds: it ends within its
timeout and one second.

    python prove_call_timeouts.py [--styles sync asyncio] [--versions 2 1 0] [--timeout 1.0] [--results FOLDER]

Each call of timed_calls.py runs once undisturbed, which shows the requests that it sends, and then once for each of
their APIs with all responses to that API held back from the moment of the call on, and once with all responses held
back, as of a broker that has stopped. Calls run side by side; one that is late is measured again alone before it
counts, as the machine may have been busy.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import inspect
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import timed_calls
from timed_calls import CALLS, NOT_ASYNC, Stage, seed_topics

import kcodec.client
import kcodec.client.aio
from kcodec.errors import KcodecError
from kcodec.testing.kafka import ApacheKafka
from kcodec.testing.proxy import KafkaProxy

GRACE_SECONDS = 1.0
#: Instead of an API: as of a broker that has stopped.
EVERYTHING = "all"
WORKERS = 16
STYLES = ("sync", "asyncio")


@dataclass(frozen=True)
class Measured:
    """One run of one call. api: whose responses were withheld; None: of none; EVERYTHING: of all."""

    style: str
    name: str
    protocol: str
    api: str | None
    seconds: float

    def line(self) -> str:
        """For the results file."""
        return f"{self.seconds:6.3f} s  {self.style:7} {self.name} ({self.protocol}), withheld: {self.api}"


class Blocking:
    """An object of kcodec.client.aio, whose coroutine functions are run by a loop in a thread."""

    def __init__(self, value: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._value, self._loop = value, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        if not callable(value):
            return value
        return lambda *arguments, **options: self._run(value, *arguments, **options)

    def result(self, timeout: float | None = None) -> Any:
        """Of a Delivery."""

        async def wait() -> Any:
            return await asyncio.wait_for(self._value, timeout)

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    def __enter__(self) -> Blocking:
        self._run(self._value.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._run(self._value.__aexit__, *error)

    def _run(self, function: Any, *arguments: Any, **options: Any) -> Any:
        async def run() -> Any:
            found = function(*arguments, **options)
            return await found if inspect.iscoroutine(found) else found

        found = asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        is_ours = type(found).__module__.startswith("kcodec.client.aio")
        return Blocking(found, self._loop) if is_ours else found


class Loop:
    """An asyncio loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, and what still runs on it."""
        asyncio.run_coroutine_threadsafe(self._cancel(), self.loop).result(10.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10.0)
        self.loop.close()

    async def _cancel(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_default_executor()


def run_call(
    kafka: ApacheKafka, style: str, name: str, protocol: str, timeout: float, api: str | None
) -> tuple[Measured, list[str]]:
    """Run one call, and name the APIs that were asked meanwhile."""
    loop = Loop() if style == "asyncio" else None
    module: Any = kcodec.client if loop is None else Blocking(kcodec.client.aio, loop.loop)
    try:
        with KafkaProxy(kafka.bootstrap_servers) as proxy:
            stage = Stage(kafka, module, proxy.bootstrap_servers, timeout, protocol)
            try:
                call = CALLS[name](stage)
                proxy.clear_log()
                if api is not None:
                    proxy.on_response(None if api == EVERYTHING else api, count=None).hold()
                began = time.monotonic()
                with suppress(KcodecError, RuntimeError):
                    call()
                seconds = time.monotonic() - began
                asked = sorted({exchange.api for exchange in proxy.exchanges()})
            finally:
                proxy.clear_rules()
                stage.close()
    finally:
        if loop is not None:
            loop.close()
    return Measured(style, name, protocol, api, seconds), asked


def measure_call(kafka: ApacheKafka, style: str, name: str, protocol: str, timeout: float) -> list[Measured]:
    """All runs of one call."""
    first, asked = run_call(kafka, style, name, protocol, timeout, None)
    return [first, *(run_call(kafka, style, name, protocol, timeout, api)[0] for api in [*asked, EVERYTHING])]


def measure(
    kafka: ApacheKafka, styles: Iterable[str], timeout: float, names: Iterable[str] | None = None
) -> list[Measured]:
    """All runs of all calls, side by side; late ones again, alone."""
    seed_topics(kafka)
    jobs = []
    for style in styles:
        for name in sorted(CALLS if names is None else names):
            if style == "asyncio" and name in NOT_ASYNC:
                continue
            is_group = name.startswith(("Consumer", "Group", "Session"))
            for protocol in ("classic", "consumer") if is_group else ("classic",):
                jobs.append((style, name, protocol))
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = [pool.submit(measure_call, kafka, *job, timeout) for job in jobs]
        found = [one for run in runs for one in run.result()]
    again = {
        one: run_call(kafka, one.style, one.name, one.protocol, timeout, one.api)[0] for one in late(found, timeout)
    }
    return [again.get(one, one) for one in found]


def late(found: Iterable[Measured], timeout: float) -> list[Measured]:
    """Those that did not end in time."""
    return [one for one in found if one.seconds > timeout + GRACE_SECONDS]


def main() -> int:
    """Measure both styles at all levels of transaction.version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=list(STYLES))
    parser.add_argument("--versions", nargs="+", type=int, default=[2, 1, 0], help="levels of transaction.version")
    parser.add_argument("--timeout", type=float, default=1.0, help="seconds of each call (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent.parent / "results")
    arguments = parser.parse_args()
    lines, failures = [], 0
    for version in arguments.versions:
        timed_calls.TOPICS.clear()
        with ApacheKafka(transaction_version=version, group_initial_rebalance_delay_ms=0) as kafka:
            found = measure(kafka, arguments.styles, arguments.timeout)
        too_late = late(found, arguments.timeout)
        failures += len(too_late)
        slowest = max(found, key=lambda one: one.seconds)
        summary = (
            f"transaction.version {version}: {len(found)} runs of {len({one.name for one in found})} calls, timeout "
            f"{arguments.timeout:g} s: {len(too_late)} ended later than {arguments.timeout + GRACE_SECONDS:g} s; "
            f"the slowest: {slowest.line()}"
        )
        print(summary, flush=True)
        lines += [summary, *(f"  LATE {one.line()}" for one in too_late)]
    arguments.results.mkdir(parents=True, exist_ok=True)
    written = arguments.results / f"call-timeouts-{datetime.date.today().isoformat()}.txt"
    written.write_text("\n".join(lines) + "\n", "utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
