# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka-python for tools/peer_client_tests.py: its tests, and the replacements for its brokers.

Tests of the asyncio clients, of share consumers, of Schema Registry and of the documentation, and soak tests are not
run, because they do not concern the clients of the facade.
"""

from __future__ import annotations

from peer_clients import PythonPeer

UNIT = (
    *("Admin", "Consumer", "Messages", "Producer", "Wakeable", "enums", "error", "kafka_error", "log", "message"),
    *("misc", "oauth_cb", "partitioners", "serializer_error", "threads", "topic_partition"),
)
INTEGRATION = ("admin", "consumer", "producer", "serialization")
# Their fixtures start brokers with the package trivup, or take the addresses in BROKERS. Tests in test_Wakeable.py send
# SIGINT to themselves: one that comes too late fails its test, and does not end the run.
CONFTEST = """
import sys
import types

import pytest

for _name in ("trivup", "trivup.clusters", "trivup.clusters.KafkaCluster"):
    sys.modules[_name] = types.ModuleType(_name)
sys.modules["trivup.clusters.KafkaCluster"].KafkaCluster = object


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    outcome = yield
    if outcome.excinfo is not None and issubclass(outcome.excinfo[0], KeyboardInterrupt):
        outcome.force_exception(RuntimeError("SIGINT came after the call that it should interrupt"))
"""
CONFLUENT = PythonPeer(
    "confluent-kafka",
    "tests",
    (*(f"tests/test_{name}.py" for name in UNIT), *(f"tests/integration/{name}" for name in INTEGRATION)),
    conftest=CONFTEST,
    facade="import kcodec.compat.confluent\n\nkcodec.compat.confluent.install()\n",
    # close() of a producer without a broker takes as long as message.timeout.ms, 30 s, and a test closes three of them.
    arguments=("--timeout=180", "-o", "asyncio_mode=auto", "-W", "ignore"),
    environment={"BROKERS": "{run.address}", "TEST_CONSUMER_GROUP_PROTOCOL": "{run.group_protocol}"},
)
