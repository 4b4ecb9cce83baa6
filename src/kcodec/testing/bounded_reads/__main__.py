# SPDX-License-Identifier: Apache-2.0
"""python -m kcodec.testing.bounded_reads: check readers on topics that end in markers, gaps and open transactions.

These options select the readers, and can be repeated. Without them, the readers of kcodec are checked:

    --reader NAME             a reader that --list shows, or module:function
    --command "PROGRAM ..."   a program that prints a line of JSON for each record. The words {bootstrap_servers},
                              {topic} and {isolation_level} in its arguments are replaced.

Each check runs in a process, which is killed after --timeout. Without --bootstrap-servers, a Kafka is started for the
checks. The exit status is 0 if all checks are ok, 1 if not, and 2 if the arguments are invalid or the topics could not
be built.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from kcodec.errors import KcodecError
from kcodec.testing.bounded_reads.checks import TIMEOUT_SECONDS, Command, Reader, Result, check
from kcodec.testing.bounded_reads.output import as_json, cases_text, table
from kcodec.testing.bounded_reads.readers import READERS, command_of, reader_of
from kcodec.testing.bounded_reads.rows import ISOLATION_LEVELS
from kcodec.testing.bounded_reads.topics import CASES, bounded_topics
from kcodec.testing.kafka import KAFKA_VERSION, ApacheKafka, KafkaFailed, MissingTool

__all__ = ["main", "run"]


def run(
    readers: dict[str, Reader | Command],
    bootstrap_servers: str | None = None,
    *,
    cases: Iterable[str] | None = None,
    isolation_levels: Iterable[str] = ISOLATION_LEVELS,
    timeout: float = TIMEOUT_SECONDS,
    jobs: int = 1,
    version: str = KAFKA_VERSION,
) -> list[Result]:
    """Build the topics, check the readers, and return the results, as `bounded_topics` and `check` describe.

    bootstrap_servers: None starts a Kafka of this version for the checks.
    """
    if bootstrap_servers is None:
        with ApacheKafka(version) as kafka:
            return run(
                readers,
                kafka.bootstrap_servers,
                cases=cases,
                isolation_levels=isolation_levels,
                timeout=timeout,
                jobs=jobs,
            )
    with bounded_topics(bootstrap_servers, cases) as topics:
        return check(readers, bootstrap_servers, topics, isolation_levels=isolation_levels, timeout=timeout, jobs=jobs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m kcodec.testing.bounded_reads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="cluster on which to build the topics")
    parser.add_argument("--version", default=KAFKA_VERSION, help="version of the Kafka to start (default: %(default)s)")
    parser.add_argument("--reader", action="append", default=[], metavar="NAME", help="reader to check")
    parser.add_argument("--command", action="append", default=[], metavar="PROGRAM", help="command to check")
    parser.add_argument("--case", action="append", choices=list(CASES), metavar="CASE", help="case (default: all)")
    parser.add_argument("--isolation-level", action="append", choices=ISOLATION_LEVELS, help="default: both")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds for each check (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of checks at the same time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the results as JSON; - for stdout")
    parser.add_argument("--list", action="store_true", help="show the readers and the cases")
    given = parser.parse_args(arguments)
    if given.list:
        described = [f"{name:<24}{function.__doc__}" for name, function in READERS.items()]
        print("\n".join(["readers:", *described, "", "cases:", cases_text()]))
        return 0
    names = given.reader or ([] if given.command else [name for name in READERS if name.startswith("kcodec")])
    try:
        for name in names:
            reader_of(name)
        commands: dict[str, Reader | Command] = {name: command_of(name) for name in names}
        commands.update({text: shlex.split(text) for text in given.command})
        results = run(
            commands,
            given.bootstrap_servers,
            cases=given.case,
            isolation_levels=given.isolation_level or ISOLATION_LEVELS,
            timeout=given.timeout,
            jobs=given.jobs,
            version=given.version,
        )
    except ValueError as error:
        parser.error(str(error))
    except (KcodecError, KafkaFailed, MissingTool, RuntimeError, TimeoutError) as error:
        print(f"{parser.prog}: the topics could not be built: {error}", file=sys.stderr)
        return 2
    if str(given.json) == "-":
        print(as_json(results), end="")
    else:
        print(table(results), end="")
        if given.json is not None:
            given.json.write_text(as_json(results), encoding="utf-8")
    return 0 if all(one.is_ok for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
