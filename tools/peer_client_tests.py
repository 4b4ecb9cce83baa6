# SPDX-License-Identifier: Apache-2.0
"""Run the tests of other Kafka clients against the embedded broker, or with kcodec in place of the client.

    python tools/peer_client_tests.py aiokafka=PATH kafka-python=PATH franz-go=PATH librdkafka=PATH [--write FILE]
    python tools/peer_client_tests.py aiokafka=PATH --client kcodec --broker kafka -k test_producer
    python tools/peer_client_tests.py kcodec=.

PATH is a checkout of the client's repository (aiokafka v0.14.0, kafka-python 3.0.11, franz-go, librdkafka v2.15.0). For
clients in Python, the installed package is tested. Nothing of the checkout is kept. Two uses:

`--broker embedded` (the default) proves the broker: the client is what its project published.
`--client kcodec` proves a facade: its statements (`facade` in tools/peer_clients.py) put kcodec behind the client's
    classes before the tests are imported. With `--broker kafka`, only the facade can be the reason of a failure.

`--broker kafka` without `--client kcodec` is the control: a test that fails there does not blame the embedded broker.

`--public` replaces or leaves out statements of the tests that use private attributes of the client
(tools/peer_public.py): what these tests check with public calls is then proved, too.

What is known to fail or to be skipped is in tools/peer_known.py, with the reason. The exit status is 1 if any other
test fails. The output of the tests goes to .cache/peer-tests/<client>.log. In FILE the report of a run takes the place
of the last report of the same command, so that a file can be written in several runs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from peer_clients import (
    AUTHORIZER,
    EXTRAS,
    FAILED,
    KAFKA_VERSION,
    LISTENERS,
    PASSED,
    SKIPPED,
    Result,
    Run,
    franz_go_records,
)
from peer_clients import PEERS as OTHERS
from peer_confluent import CONFLUENT
from peer_known import known_reason
from peer_librdkafka import LIBRDKAFKA
from peer_reports import command_line, write_report

from kcodec.broker import Broker
from kcodec.testing.certificates import Certificates
from kcodec.testing.kafka import ApacheKafka

SECONDS = 1800.0
PEERS = {**OTHERS, "confluent-kafka": CONFLUENT, "librdkafka": LIBRDKAFKA}
#: Setting of the embedded broker -> that of ApacheKafka, where the names differ.
KAFKA_NAMES = {"default_partitions": "num_partitions", "offsets_topic_partitions": "offsets_topic_num_partitions"}


@contextmanager
def started(kind: str, settings: Mapping[str, Any], certificates: Path) -> Iterator[Mapping[str, str]]:
    """Start a broker and yield its addresses by security protocol.

    certificates: The folder for the certificates of the listeners with TLS, under the names that the tests look for.
    """
    if kind == "embedded":
        tls: dict[str, Any] = tls_settings(certificates) if "SSL" in settings.get("listeners", {}) else {}
        with Broker(**settings, **tls) as broker:
            yield broker.listeners
    else:
        own = {"node_id", "users", *LISTENERS, *AUTHORIZER}
        options = {KAFKA_NAMES.get(name, name): value for name, value in settings.items() if name not in own}
        # The tests expect automatic creation of topics, Kafka's and the embedded broker's default but not
        # ApacheKafka's.
        with ApacheKafka(KAFKA_VERSION, auto_create_topics_enable=True, **options) as kafka:
            yield {"PLAINTEXT": kafka.bootstrap_servers}


def tls_settings(folder: Path) -> dict[str, Any]:
    """Write certificates for clients to a folder, and return the settings of a broker with TLS."""
    made = Certificates()
    made.keep_in(folder / "made")
    broker, client = made.broker(), made.client()
    for name, file in {
        "ca.crt": made.authority,
        "ca-cert": made.authority,
        "client.crt": client.certificate,
        "client.key": client.key,
    }.items():
        shutil.copyfile(file, folder / name)
    return {"ssl_certfile": broker.certificate, "ssl_keyfile": broker.key, "ssl_cafile": made.authority}


def version_of(name: str, checkout: Path) -> str:
    """Return the version of the installed package, and the tag or commit of the checkout, as far as there are any."""
    tested = []
    with suppress(importlib.metadata.PackageNotFoundError):
        tested.append(importlib.metadata.version(name))
    for arguments in (("describe", "--tags", "--exact-match"), ("rev-parse", "--short=8", "HEAD")):
        command = ["git", "-C", str(checkout), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return ", tests of ".join([*tested, done.stdout.strip()])
    return "".join(tested)


def arguments_of(name: str, options: argparse.Namespace) -> list[str]:
    """Return the arguments with which this tool runs the tests of one client, without paths of this machine."""
    arguments = [f"{name}=CHECKOUT"]
    arguments += ["--client", options.client] if options.client != "own" else []
    arguments += ["--broker", options.broker] if options.broker != "embedded" else []
    arguments += ["--public"] if options.public else []
    arguments += ["--group-protocol", options.group_protocol] if options.group_protocol != "classic" else []
    return [*arguments, *(["-k", options.select] if options.select else [])]


def report(name: str, version: str, results: list[Result], seconds: float, options: argparse.Namespace) -> list[str]:
    """Return the lines about one client. A failure without a known reason is marked."""
    counts = Counter(result.status for result in results)
    with_what = f"{options.client} client, {options.broker} broker"
    if name == "franz-go":
        with_what += f", {franz_go_records():,} records"
    if options.public:
        with_what += ", statements on private attributes replaced"
    if options.group_protocol != "classic":
        with_what += f", group.protocol={options.group_protocol}"
    totals = f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped"
    lines = [f"{name} {version} ({with_what}): {totals}, {seconds:.0f} s"]
    lines.append(command_line("tools/peer_client_tests.py", arguments_of(name, options)))
    for status in (FAILED, SKIPPED):
        by_reason: dict[str, list[str]] = {}
        for result in results:
            if result.status == status:
                known = known_reason(name, result, options.client, options.broker)
                fallback = result.message if status == SKIPPED else f"UNEXPECTED: {result.message}"
                by_reason.setdefault(known or fallback, []).append(result.test)
        for reason, tests in sorted(by_reason.items()):
            lines.append(f"  {status}, {reason}:")
            lines += [f"    {test}" for test in sorted(tests)]
    return lines


def main() -> int:
    """Run the tests, print and write the report. Return 1 if a test failed without a known reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="CLIENT=PATH", help=f"{', '.join(PEERS)}, and its checkout")
    parser.add_argument("--broker", choices=["embedded", "kafka"], default="embedded")
    parser.add_argument("--client", choices=["own", "kcodec"], default="own", help="kcodec: with its facade")
    parser.add_argument("--public", action="store_true", help="without statements on private attributes")
    parser.add_argument(
        "--group-protocol", choices=["classic", "consumer"], default="classic", help="for tests that use either"
    )
    parser.add_argument("-k", dest="select", help="the tests to run: pytest's -k, for Go its -run")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit for the tests of one client")
    parser.add_argument("--write", type=Path, help="put the reports into a file, too")
    options = parser.parse_args()
    EXTRAS.mkdir(parents=True, exist_ok=True)
    is_good = True
    for given in options.checkouts:
        name, _, path = given.partition("=")
        if name not in PEERS or not path:
            parser.error(f"{given!r} is not CLIENT=PATH with a client of {', '.join(PEERS)}")
        peer, checkout = PEERS[name], Path(path).resolve()
        if options.broker == "kafka" and name == "kcodec":
            parser.error("kcodec's own tests use Apache Kafka without this tool: run pytest")
        begun = time.monotonic()
        with (
            tempfile.TemporaryDirectory() as folder,
            tempfile.TemporaryDirectory() as certificates,
            started(options.broker, peer.settings, Path(certificates)) as listeners,
        ):
            run = Run(
                checkout=checkout,
                folder=Path(folder),
                listeners=listeners,
                certificates=Path(certificates),
                select=options.select,
                with_facade=options.client == "kcodec",
                timeout=options.seconds,
                output=EXTRAS / f"{name}.log",
                is_public=options.public,
                group_protocol=options.group_protocol,
            )
            results = peer.run(run)
        lines = report(name, version_of(name, checkout), results, time.monotonic() - begun, options)
        print("\n".join(lines), flush=True)
        is_good = is_good and not any("UNEXPECTED" in line for line in lines)
        if options.write:
            write_report(options.write, lines)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
