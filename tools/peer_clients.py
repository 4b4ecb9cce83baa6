# SPDX-License-Identifier: Apache-2.0
"""Clients of other projects whose own tests tools/peer_client_tests.py runs, and the replacements for their brokers.

The tests are copied from a checkout into a temporary folder. Only the fixtures that start a broker are replaced, by
text that is appended to the copied conftest.py or by environment variables that the tests have for this purpose.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer_public import make_public

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ROOT / ".cache" / "peer-tests"
#: The version of Kafka whose APIs the embedded broker has, by which the tests select what to run.
KAFKA_VERSION = "4.4.0"
#: Packages that the tests import. Without their dependencies, so that they bring no second pytest.
EXTRA_PACKAGES = (
    *("pytest-asyncio==1.3.0", "pytest-mock==3.15.1", "pytest-timeout==2.4.0", "py==1.11.0"),
    # confluent-kafka's modules for Avro and Schema Registry, which its tests import.
    *("attrs==26.1.0", "authlib==1.9.9", "avro==1.12.0", "cachetools==8.0.1", "joserfc==1.8.0"),
    *("anyio==4.16.0", "certifi==2026.10.18", "h11==0.16.0", "httpcore==1.0.9", "httpx==0.28.1", "idna==3.20"),
    *("charset-normalizer==3.5.2", "requests==2.34.2", "urllib3==2.8.0"),
)
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MESSAGE_LENGTH = 300
#: Exit statuses of pytest after it has run all tests.
ALL_PASSED, SOME_FAILED = 0, 1


@dataclass(frozen=True)
class Result:
    """How a test ended. message: the reason of a failure or of a skip, one line."""

    test: str
    status: str
    message: str = ""
    seconds: float = 0.0


#: Settings of the embedded broker for tests with TLS and logins: its listeners, and the user of the tests.
LISTENERS: Mapping[str, Any] = {
    "listeners": {"PLAINTEXT": 0, "SSL": 0, "SASL_PLAINTEXT": 0, "SASL_SSL": 0},
    "sasl_mechanisms": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
}


#: Settings of the embedded broker for tests with ACLs. Clients on the listeners without a login may do everything.
AUTHORIZER: Mapping[str, Any] = {
    "authorizer": True,
    "super_users": ("ANONYMOUS",),
    "allow_everyone_if_no_acl_found": True,
}


@dataclass(frozen=True)
class Run:
    """One run of a client's tests. listeners: security protocol -> host:port of the broker.

    certificates: A folder with ca.crt (also named ca-cert), client.crt and client.key, if there is a listener with TLS.
    select:       pytest's -k, or Go's -run.
    is_public:    Without statements on private attributes (tools/peer_public.py).
    group_protocol: The protocol of consumer groups in tests that use either.
    """

    checkout: Path
    folder: Path
    listeners: Mapping[str, str]
    certificates: Path
    select: str | None
    with_facade: bool
    timeout: float
    output: Path
    is_public: bool = False
    group_protocol: str = "classic"

    @property
    def address(self) -> str:
        """host:port of the listener without TLS and login."""
        return self.listeners["PLAINTEXT"]

    @property
    def port(self) -> str:
        """Port of this listener."""
        return self.address.rsplit(":", 1)[1]


@dataclass(frozen=True)
class PythonPeer:
    """A client whose tests run with pytest.

    package:  Name of the installed distribution that is tested; tests: the folder of its tests in a checkout.
    targets:  What of the folder pytest runs.
    conftest: Text that replaces the fixtures of its conftest.py; conftest_file: this file in the folder.
    facade:   Statements that put kcodec behind the client's classes, run before its tests; None: there is no facade.
    settings: Settings of the broker.
    """

    package: str
    tests: str
    targets: tuple[str, ...]
    conftest: str = ""
    conftest_file: str = "conftest.py"
    facade: str | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, run: Run) -> list[Result]:
        """Run the tests and return how each ended. Raise SystemExit if none ran."""
        install_extras()
        if run.with_facade and self.facade is None:
            raise SystemExit(f"kcodec has no facade for {self.package}: give its statements in tools/peer_clients.py")
        source = run.checkout / self.tests
        if not source.is_dir():
            raise SystemExit(
                f"{run.checkout} has no folder {self.tests}: give a checkout of {self.package}'s repository"
            )
        # Only the tests are copied, not the package next to them, so that the installed package is tested.
        shutil.copytree(source, run.folder / self.tests, ignore=shutil.ignore_patterns("__pycache__"))
        if run.is_public:
            make_public(self.package, run.folder / self.tests)
        with (run.folder / self.tests / self.conftest_file).open("a", encoding="utf-8") as conftest:
            conftest.write("\n\n" + self.conftest)
        for name, text in self.modules.items():
            (run.folder / name).write_text(text, "utf-8")
        plugins = []
        if run.with_facade and self.facade is not None:
            (run.folder / "install_facade.py").write_text(self.facade, "utf-8")
            plugins = ["-p", "install_facade"]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly"]
        command += [*plugins, *self.arguments, *(["-k", run.select] if run.select else [])]
        paths = [run.folder, ROOT / "src", EXTRAS]
        environment = {
            **os.environ,
            **{name: value.format(run=run) for name, value in self.environment.items()},
            "PEER_LISTENERS": json.dumps(dict(run.listeners)),
            "PEER_CERTIFICATES": str(run.certificates),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        }
        return pytest_results(self.package, run, [*command, *self.targets], run.folder, environment)


def install_extras() -> None:
    """Install the packages that the tests import into a separate folder, once."""
    done = EXTRAS / "complete.txt"
    wanted = "\n".join(EXTRA_PACKAGES)
    if done.exists() and done.read_text("utf-8") == wanted:
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", str(EXTRAS)]
    subprocess.run([*command, *EXTRA_PACKAGES], check=True)
    done.write_text(wanted, "utf-8")


def pytest_results(
    package: str, run: Run, command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> list[Result]:
    """Run pytest in a folder and return how each test ended. Raise SystemExit if none ran."""
    report = run.folder / "report.xml"
    with run.output.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            [*command, f"--junitxml={report}"],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=run.timeout,
            check=False,
        )
    if not report.exists():
        raise SystemExit(f"no test of {package} ran:\n{run.output.read_text('utf-8')[-3000:]}")
    results = junit_results(report)
    if done.returncode not in (ALL_PASSED, SOME_FAILED):
        reason = f"pytest ended with status {done.returncode} before it had run all tests"
        results.append(Result("the run", FAILED, reason, 0.0))
    return results


def junit_results(report: Path) -> list[Result]:
    """Return the results of a report of pytest. Both an error of a fixture and a failure are failures."""
    results: dict[str, Result] = {}
    for case in ET.parse(report).iter("testcase"):
        module = case.get("classname", "")
        name = f"{module}::{case.get('name', '')}" if module else case.get("name", "")
        status, message = PASSED, ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                status = SKIPPED if child.tag == "skipped" else FAILED
                message = " ".join((child.get("message") or child.text or "").split())[:MESSAGE_LENGTH]
                break
        known = results.get(name)
        if known is None or known.status != FAILED:  # an error in a fixture's teardown is a second case with this name
            results[name] = Result(name, status, message, float(case.get("time", "0")))
    return list(results.values())


@dataclass(frozen=True)
class OwnTests:
    """kcodec's own tests that use Apache Kafka, with the embedded broker in its place (KCODEC_TEST_BROKER)."""

    package: str = "kcodec"
    targets: tuple[str, ...] = ("producer", "transactions", "admin", "session", "consumer", "reading")
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, run: Run) -> list[Result]:
        """Run the tests and return how each ended. Raise SystemExit if none ran."""
        install_extras()
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:asyncio"]
        # Versions of Kafka other than the newest, and Spark, have tests of their own.
        select = f"not 3.9.1 and ({run.select})" if run.select else "not 3.9.1"
        command += ["--timeout=60", "-k", select, "-m", "not spark"]
        environment = {**os.environ, "KCODEC_TEST_BROKER": "embedded", "PYTHONPATH": str(EXTRAS)}
        command += [f"tests/{target}" for target in self.targets]
        return pytest_results(self.package, run, command, run.checkout, environment)


def franz_go_records() -> int:
    """Return how many records the tests of franz-go produce: KGO_TEST_RECORDS, or its default."""
    return int(os.environ.get("KGO_TEST_RECORDS", str(500_000)))


@dataclass(frozen=True)
class GoPeer:
    """franz-go: its tests take the address of a broker from the environment."""

    package: str = "franz-go"
    tests: str = "pkg/kgo"
    select: str = "^(TestTxnEtl|TestGroupETL)$"
    facade: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, run: Run) -> list[Result]:
        """Run the tests and return how each ended. Raise SystemExit if they could not be compiled."""
        if run.with_facade:
            raise SystemExit("franz-go is written in Go: kcodec cannot take the place of its client")
        if shutil.which("go") is None:
            raise SystemExit("franz-go: no Go compiler on the PATH")
        environment = {
            **os.environ,
            "KGO_SEEDS": run.address,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(franz_go_records()),
            "KGO_LOG_LEVEL": os.environ.get("KGO_LOG_LEVEL", "none"),
        }
        command = [
            "go",
            "test",
            "-count=1",
            "-v",
            "-timeout",
            f"{run.timeout:.0f}s",
            "-run",
            run.select or self.select,
            ".",
        ]
        with run.output.open("w", encoding="utf-8") as output:
            subprocess.run(
                command,
                cwd=run.checkout / self.tests,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=run.timeout + 60,
                check=False,
            )
        text = run.output.read_text("utf-8", errors="replace")
        found = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)", text, re.MULTILINE)
        if not found:
            raise SystemExit(f"no test of franz-go ran:\n{text[-3000:]}")
        status = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
        return [Result(name, status[word], "", float(seconds)) for word, name, seconds in found]


# aiokafka starts a container. Its conftest.py imports the docker package only for that.
AIOKAFKA_CONFTEST = '''
import json as _json
import os as _os

from kcodec.admin import security as _security
from kcodec.admin.security import ScramCredentialUpsertion as _Upsertion
from kcodec.admin.security import ScramMechanism as _Mechanism
from kcodec.client import Admin as _Admin

_LISTENERS = _json.loads(_os.environ["PEER_LISTENERS"])


def _port(protocol):
    return int(_LISTENERS[protocol].rsplit(":", 1)[1]) if protocol in _LISTENERS else -1


def pytest_collection_modifyitems(config, items):
    """Keep the tests that use a broker."""
    used = [item for item in items if "kafka_server" in item.fixturenames]
    config.hook.pytest_deselected(items=[item for item in items if item not in used])
    items[:] = used


@pytest.fixture(scope="session")
def docker():
    yield None


@pytest.fixture(scope="session")
def kafka_image(request):
    return request.config.getoption("--docker-image")


@pytest.fixture(scope="session")
def ssl_folder():
    return pathlib.Path(_os.environ["PEER_CERTIFICATES"])


@pytest.fixture(scope="session")
def kafka_server(kafka_image):
    host = _LISTENERS["PLAINTEXT"].rsplit(":", 1)[0]
    yield KafkaServer(host, *map(_port, ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")), None)


class _Missing:
    """A part of their container that this run does not have: a test that uses it is skipped, with the reason."""

    def __init__(self, reason):
        self._reason = reason

    def __getattr__(self, name):
        pytest.skip(self._reason)


class _Acls:
    """What their tool kafka-acls.sh does in the container."""

    def __init__(self):
        self._added = []

    def add_acl(self, operation, cluster=None, topic=None, group=None, transactional_id=None, **principals):
        ((permission, principal),) = principals.items()
        kinds = _security.ResourceType
        resources = {kinds.TOPIC: topic, kinds.GROUP: group, kinds.TRANSACTIONAL_ID: transactional_id}
        resources[kinds.CLUSTER] = "kafka-cluster" if cluster else None
        ((kind, name),) = [(kind, name) for kind, name in resources.items() if name is not None]
        permission = _security.AclPermission[permission.removesuffix("_principal").upper()]
        operation = _security.AclOperation[operation.upper()]
        acl = _security.AclBinding(kind, name, f"User:{principal}", operation, permission)
        with _Admin(bootstrap_servers=_LISTENERS["PLAINTEXT"]) as admin:
            admin.create_acls([acl])
        self._added.append(acl)

    def cleanup(self):
        if self._added:
            filters = [_security.AclFilter(one.resource_type, one.resource_name) for one in self._added]
            with _Admin(bootstrap_servers=_LISTENERS["PLAINTEXT"]) as admin:
                admin.delete_acls(filters)
            self._added.clear()

    def list_acl(self):
        """Do nothing: setUp lists them for a log message."""


class _Config:
    """What their tool kafka-configs.sh does in the container."""

    def add_scram_user(self, username, password):
        mechanisms = (_Mechanism.SCRAM_SHA_256, _Mechanism.SCRAM_SHA_512)
        with _Admin(bootstrap_servers=_LISTENERS["PLAINTEXT"]) as admin:
            admin.alter_user_scram_credentials([_Upsertion(username, password, one) for one in mechanisms])


@pytest.fixture(scope="class")
def acl_manager():
    return _Acls()


@pytest.fixture(scope="class")
def kafka_config():
    return _Config()


@pytest.fixture(scope="class")
def kerberos_utils():
    return _Missing("needs a Kerberos server")
'''
# kafka-python starts a broker for each transport, and runs kafka-topics.sh with the options of a client.
KAFKA_PYTHON_CONFTEST = '''
import json as _json

_LISTENERS = _json.loads(os.environ["PEER_LISTENERS"])


def _instance(cls, broker_id, *, transport="PLAINTEXT", sasl_mechanism=None, **_):
    """Return the running broker, at its listener for this transport."""
    host, port = _LISTENERS[transport].rsplit(":", 1)
    options = {"transport": transport, "sasl_mechanism": sasl_mechanism, "partitions": 4, "external": True}
    broker = cls(host, int(port), broker_id, **options)
    broker.ssl_dir = os.environ["PEER_CERTIFICATES"]
    return broker


def _get_topic_names(self):
    with KafkaAdminClient(**client_params(self, "topics")) as admin:
        return admin.list_topics()


KafkaFixture.instance = classmethod(_instance)
KafkaFixture.get_topic_names = _get_topic_names
'''
DOCKER_STUB = '''"""Names that aiokafka's conftest.py needs to be imported."""


class _Containers:
    Container = object


class models:
    containers = _Containers
'''

PEERS: dict[str, PythonPeer | GoPeer | OwnTests] = {
    "aiokafka": PythonPeer(
        "aiokafka",
        "tests",
        ("tests",),
        conftest=AIOKAFKA_CONFTEST,
        facade="import kcodec.compat.aiokafka\n\nkcodec.compat.aiokafka.install(clients=True)\n",
        arguments=("--ignore=tests/record", f"--docker-image=kcodec:2.13_{KAFKA_VERSION}", "-o", "asyncio_mode=auto"),
        modules={"docker.py": DOCKER_STUB, "pytest.ini": "[pytest]\nmarkers =\n    ssl: needs certificates\n"},
        settings={"node_id": 0, "default_partitions": 2, **LISTENERS, **AUTHORIZER, "users": {"test": "test"}},
    ),
    # The broker has the settings of their servers/resources/default/kafka.properties.
    "kafka-python": PythonPeer(
        "kafka-python",
        "test",
        ("test/integration",),
        arguments=("--timeout=120",),
        conftest=KAFKA_PYTHON_CONFTEST,
        conftest_file="integration/conftest.py",
        environment={"KAFKA_VERSION": KAFKA_VERSION, "KAFKA_ROOT": "."},
        settings={
            "node_id": 0,
            "default_partitions": 4,
            "group_min_session_timeout_ms": 1000,
            "offsets_topic_partitions": 2,
            **LISTENERS,
            **AUTHORIZER,
            "users": {"alice": "alice-secret"},
        },
    ),
    "franz-go": GoPeer(),
    "kcodec": OwnTests(),
}
