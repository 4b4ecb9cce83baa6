# SPDX-License-Identifier: Apache-2.0
"""Bring the jars of Apache Kafka and the Eclipse compiler for Java into the checkout's cache.

The tests compare kcodec with Kafka's own classes by programs in tests/java, for which the compiler is needed because a
Java runtime has no javac. They start brokers from the same jars. kcodec.testing.jars downloads them with the Ivy of
pyspark; this program has the list of jars and their folders.

Usage: python tools/fetch_kafka_jars.py [LIBS] [--broker] [--ivy-cache FOLDER] [--write-checksums]

LIBS (default .cache/kafka-libs) is the folder for the newest Kafka and the compiler. Kafka's command line tools
(kafka-dump-log) have many dependencies and therefore a separate folder, .cache/kafka-tools. There are also separate
folders for the older brokers, for Spark's own Kafka source, .cache/spark-kafka, and for the Kerberos server of the
tests, .cache/kerby. --broker fetches only the jars of a broker of the newest version. --write-checksums, for a new
version, fetches everything into an empty folder and Ivy cache and writes src/kcodec/testing/jar_checksums.py; review
the changes. Java is found by `find_java`, which tests and benchmarks share.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from kcodec.testing import jar_checksums, jars
from kcodec.testing.jars import KAFKA_VERSION, STAMP, TESTED_VERSIONS, Artifacts, broker_artifacts, fetch
from kcodec.testing.java import MissingTool, find_java

__all__ = ["ARTIFACTS", "DEFAULT_LIBS", "DEFAULT_TOOLS", "KAFKA_VERSION", "STAMP", "TOOLS", "MissingTool", "find_java"]

ROOT = Path(__file__).resolve().parent.parent
CHECKSUMS = ROOT / "src" / "kcodec" / "testing" / "jar_checksums.py"
DEFAULT_LIBS = ROOT / ".cache" / "kafka-libs"
DEFAULT_TOOLS = ROOT / ".cache" / "kafka-tools"
DEFAULT_CONNECTOR = ROOT / ".cache" / "spark-kafka"
DEFAULT_KERBY = ROOT / ".cache" / "kerby"
DEFAULT_IVY_CACHE = ROOT / ".cache" / "ivy"

ECJ_VERSION = "3.40.0"
OLDER_VERSIONS = TESTED_VERSIONS[1:]
#: The one of these that has the protocol versions that Kafka 4 removed.
OLDER_KAFKA_VERSION = OLDER_VERSIONS[-1]
#: Kafka's command line tools of 4.4.0 are not published; those of 4.3.1 run with the jars of 4.3.1.
TOOLS_VERSION = "4.3.1"
# The whole broker (44 MB) and not only its clients: tests that start one need the same jars.
ARTIFACTS: Artifacts = (*broker_artifacts(), ("org.eclipse.jdt", "ecj", ECJ_VERSION))
TOOLS: Artifacts = (("org.apache.kafka", "kafka-tools", TOOLS_VERSION),)
# Spark's own Kafka source, each jar by name: it depends on a token provider of its own version, which is not published.
CONNECTOR: Artifacts = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", OLDER_KAFKA_VERSION),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)

KERBY_VERSION = "2.1.1"
# The jars that a server of Apache Kerby loads, each by name: all dependencies would be twice as many.
KERBY: Artifacts = tuple(
    ("org.apache.kerby", name, KERBY_VERSION)
    for name in (
        *("kerb-simplekdc", "kerb-admin", "kerb-client", "kerb-common", "kerb-core", "kerb-crypto", "kerb-identity"),
        *("kerb-server", "kerb-util", "kerby-asn1", "kerby-config", "kerby-pkix", "kerby-util", "kerby-xdr"),
    )
)
#: Artifacts that are fetched without their dependencies.
ALONE = (CONNECTOR, KERBY)


def is_complete(libs: Path, artifacts: Artifacts = ARTIFACTS) -> bool:
    """Return whether `libs` contains all of these artifacts."""
    return jars.is_complete(libs, artifacts)


def write_checksums() -> None:
    """Fetch everything again and write the checksums of the jars."""
    wanted = (ARTIFACTS, jars.LOGGING, TOOLS, *map(broker_artifacts, OLDER_VERSIONS), *ALONE)
    jar_checksums.ARTIFACTS, jar_checksums.SHA256 = frozenset(), {}  # do not compare with the old checksums
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, artifacts in enumerate(wanted):
            folder = Path(scratch, str(number))
            fetch(folder, artifacts, Path(scratch, "ivy"), is_transitive=artifacts not in ALONE)
            for jar in folder.glob("*.jar"):
                digest = hashlib.sha256(jar.read_bytes()).hexdigest()
                if found.setdefault(jar.name, digest) != digest:
                    sys.exit(f"{jar.name} is in two versions, of which one name cannot tell")
    names = sorted(":".join(artifact) for artifacts in wanted for artifact in artifacts)
    head, _, _ = CHECKSUMS.read_text("utf-8").partition("#: organisation:name:revision")
    lines = ["#: organisation:name:revision of what was resolved; all jars that came with it are in SHA256."]
    lines += ["ARTIFACTS = frozenset(", "    {", *(f'        "{name}",' for name in names), "    }", ")"]
    lines += ["SHA256 = {", *(f'    "{name}": "{digest}",' for name, digest in sorted(found.items())), "}", ""]
    CHECKSUMS.write_text(head + "\n".join(lines), "utf-8")
    print(f"{CHECKSUMS.relative_to(ROOT)}: {len(found)} jars")


def main() -> None:
    """Fetch the jars, unless they are complete. Print one line, and exit with code 1 on failure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("libs", type=Path, nargs="?", default=DEFAULT_LIBS)
    parser.add_argument("--broker", action="store_true")
    parser.add_argument("--ivy-cache", type=Path, default=DEFAULT_IVY_CACHE)
    parser.add_argument("--write-checksums", action="store_true")
    arguments = parser.parse_args()
    if arguments.write_checksums:
        write_checksums()
        return
    broker = (
        (arguments.libs.absolute(), ARTIFACTS, f"the jars of Apache Kafka {KAFKA_VERSION}"),
        (ROOT / ".cache" / "slf4j-simple", jars.LOGGING, "what brokers log with"),
    )
    others = (
        (DEFAULT_TOOLS, TOOLS, "its command line tools"),
        *(
            (
                ROOT / ".cache" / f"kafka-libs-{version}",
                broker_artifacts(version),
                f"the jars of Apache Kafka {version}",
            )
            for version in OLDER_VERSIONS
        ),
        (DEFAULT_CONNECTOR, CONNECTOR, "the jars of Spark's Kafka source"),
        (DEFAULT_KERBY, KERBY, "the Kerberos server of the tests"),
    )
    for libs, artifacts, what in broker if arguments.broker else (*broker, *others):
        if is_complete(libs, artifacts):
            continue
        print(f"fetching {what} (up to 44 MB, about a minute, once)", flush=True)
        try:
            fetch(libs, artifacts, arguments.ivy_cache.absolute(), is_transitive=artifacts not in ALONE)
        except MissingTool as missing:
            sys.exit(str(missing))
        print(f"{what}: {len(list(libs.glob('*.jar')))} jars")


if __name__ == "__main__":
    main()
