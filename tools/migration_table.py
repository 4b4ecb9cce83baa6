# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference/migration-table.md: what kcodec has for each public method and option of three other clients.

Usage: python tools/migration_table.py [--check]      --check: write nothing, fail if the page would be another one

The names are taken from the installed packages: the public methods of their clients, the parameters of aiokafka, the
DEFAULT_CONFIG of kafka-python, and the table of properties that librdkafka prints. What kcodec has for them is in
tools/migration_calls.py (methods), in the declarations of the options, and in `kcodec.network.foreign_options`.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import confluent_kafka.aio
import kafka
from migration_calls import ADMIN, CONSUMER, PRODUCER

from kcodec.consumer.options import ConsumerConfig
from kcodec.network.foreign_options import WITHOUT_COUNTERPART
from kcodec.network.options import ClientConfig
from kcodec.options import counterparts
from kcodec.producer.options import ProducerConfig
from kcodec.security.option_names import SecurityConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "migration-table.md"
AIOKAFKA, KAFKA_PYTHON, CONFLUENT = "aiokafka", "kafka-python", "confluent-kafka"
#: Kind of client -> its classes in other packages, and what kcodec has for their methods.
CLIENTS: dict[str, tuple[dict[str, tuple[type, ...]], dict[str, str]]] = {
    "Consumer": (
        {
            AIOKAFKA: (aiokafka.AIOKafkaConsumer,),
            KAFKA_PYTHON: (kafka.KafkaConsumer,),
            CONFLUENT: (
                confluent_kafka.Consumer,
                confluent_kafka.DeserializingConsumer,
                confluent_kafka.aio.AIOConsumer,
            ),
        },
        CONSUMER,
    ),
    "Producer": (
        {
            AIOKAFKA: (aiokafka.AIOKafkaProducer,),
            KAFKA_PYTHON: (kafka.KafkaProducer,),
            CONFLUENT: (
                confluent_kafka.Producer,
                confluent_kafka.SerializingProducer,
                confluent_kafka.aio.AIOProducer,
            ),
        },
        PRODUCER,
    ),
    "Admin": (
        {
            AIOKAFKA: (aiokafka.admin.AIOKafkaAdminClient,),
            KAFKA_PYTHON: (kafka.KafkaAdminClient,),
            CONFLUENT: (confluent_kafka.admin.AdminClient,),
        },
        ADMIN,
    ),
}
#: Options of librdkafka and of the Python package that its table does not have: those of confluent_kafka's own code.
OF_CONFLUENT = ("error_cb", "logger", "oauth_cb", "on_commit", "on_delivery", "stats_cb", "throttle_cb")
HEADING = """# Migration table

This page lists every public method and option of aiokafka {aiokafka}, kafka-python {kafka} and confluent-kafka \
{confluent}, and what kcodec has in its place. The guide for a migration is \
[Migrate from aiokafka, kafka-python and confluent-kafka](../migration.md). The page is written by \
`tools/migration_table.py` from the installed packages.
"""


def methods(kind: str) -> dict[str, list[str]]:
    """Return the public methods of a kind of client, and the packages that have each."""
    found: dict[str, list[str]] = {}
    for package, classes in CLIENTS[kind][0].items():
        for client in classes:
            for name, _ in inspect.getmembers(client):
                if not name.startswith("_") and name != "DEFAULT_CONFIG" and package not in found.setdefault(name, []):
                    found[name].append(package)
    return dict(sorted(found.items()))


def options() -> dict[str, list[str]]:
    """Return the options of all clients, and the packages that have each. Those of librdkafka contain dots."""
    found: dict[str, list[str]] = {}

    def add(package: str, names: Iterable[str]) -> None:
        for name in names:
            packages = found.setdefault(name, [])
            if package not in packages:
                packages.append(package)

    for kind in CLIENTS.values():
        for client in kind[0][AIOKAFKA]:
            parameters = inspect.signature(client.__init__).parameters.values()  # type: ignore[misc]
            add(AIOKAFKA, (one.name for one in parameters if one.name != "self" and one.kind is not one.VAR_POSITIONAL))
        for client in kind[0][KAFKA_PYTHON]:
            add(KAFKA_PYTHON, client.DEFAULT_CONFIG)  # type: ignore[attr-defined]
    add(CONFLUENT, (*librdkafka_properties(), *OF_CONFLUENT))
    return dict(sorted(found.items()))


def librdkafka_properties() -> list[str]:
    """Return the names in the table of properties that confluent-kafka's librdkafka prints, which is
    CONFIGURATION.md."""
    folder = Path(confluent_kafka.__file__).parent
    (path,) = folder.parent.glob("confluent_kafka.libs/librdkafka*")
    library, libc = ctypes.CDLL(str(path)), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    libc.fclose.argtypes = library.rd_kafka_conf_properties_show.argtypes = [ctypes.c_void_p]
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "table"
        file = libc.fopen(str(target).encode(), b"w")
        library.rd_kafka_conf_properties_show(file)
        libc.fclose(file)
        rows = [line.split("|") for line in target.read_text(encoding="utf-8").splitlines() if line.count("|") > 4]
    return sorted({row[0].strip() for row in rows} - {"Property"} - {row[0].strip() for row in rows if "--" in row[0]})


def option_cell(name: str) -> str | None:
    """Return the counterpart of an option in kcodec; None if it is not known."""
    own = name.replace(".", "_").replace("-", "_")
    known = {one for kind in (ClientConfig, ProducerConfig, ConsumerConfig, SecurityConfig) for one in kind.names()}
    ours = own if own in known else counterparts().get(own)
    if ours is not None:
        return f"`{ours}`"
    found = WITHOUT_COUNTERPART.get(own)
    return None if found is None else re.sub(r"(?<![`\w])(\w+=\w*|\w+\(\))", r"`\1`", found)


def missing() -> list[str]:
    """Return the names that have no row."""
    absent = [f"{kind}.{name}" for kind, (_, cells) in CLIENTS.items() for name in methods(kind) if name not in cells]
    return absent + [f"option {name}" for name in options() if option_cell(name) is None]


def draw() -> str:
    """Return the page. Raise ValueError for a name without a row."""
    absent = missing()
    if absent:
        raise ValueError(f"no row for {', '.join(absent)}: add them to tools/migration_calls.py or foreign_options.py")
    versions = {"aiokafka": aiokafka.__version__, "kafka": kafka.__version__, "confluent": confluent_kafka.__version__}
    parts = [HEADING.format(**versions)]
    for kind, (_, cells) in CLIENTS.items():
        rows = {name: (packages, cells[name]) for name, packages in methods(kind).items()}
        parts.append(f"## Methods: {kind}\n\n" + table("method", rows))
    found = {name: (packages, option_cell(name) or "") for name, packages in options().items()}
    parts.append("## Options\n\n" + table("option", found))
    return "\n".join(parts)


def table(head: str, rows: dict[str, tuple[list[str], str]]) -> str:
    """Return a table with the columns name, packages and counterpart in kcodec."""
    lines = [f"| {head} | client | kcodec |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {', '.join(packages)} | {cell} |" for name, (packages, cell) in rows.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with --check only compare it. Return the exit status."""
    page = draw()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    if arguments == ["--check"]:
        print(f"{PAGE.name} is not what the packages say; run: python tools/migration_table.py", file=sys.stderr)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
