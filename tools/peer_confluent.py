# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka-python for tools/peer_client_tests.py: its tests, and the replacements for its brokers.

Tests of the asyncio clients, of share consumers, of Schema Registry and of the documentation, and soak tests are not
run, because they do not concern the clients of the facade.
"""

from __future__ import annotations

from peer_clients import AUTHORIZER, PythonPeer

UNIT = (
    *("Admin", "Consumer", "Messages", "Producer", "Wakeable", "enums", "error", "kafka_error", "log", "message"),
    *("misc", "oauth_cb", "partitioners", "serializer_error", "threads", "topic_partition"),
)
INTEGRATION = ("admin", "consumer", "producer", "serialization")
# Their fixtures start brokers with the package trivup, or take the addresses in BROKERS. A cluster with SASL always
# comes from trivup; here, it is the listener with SASL. Tests in test_Wakeable.py send SIGINT to themselves: one that
# comes too late fails its test, and does not end the run.
CONFTEST = """
import json
import os
import sys
import types

import pytest


class _Cluster:
    def __init__(self, **settings):
        name, _, password = settings["sasl_users"].partition("=")
        self._options = {"bootstrap.servers": json.loads(os.environ["PEER_LISTENERS"])["SASL_PLAINTEXT"]}
        self._options |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": settings["sasl_mechanism"]}
        self._options |= {"sasl.username": name, "sasl.password": password}

    def wait_operational(self):
        pass

    def client_conf(self):
        return dict(self._options)

    def stop(self, cleanup):
        pass


for _name in ("trivup", "trivup.clusters", "trivup.clusters.KafkaCluster"):
    sys.modules[_name] = types.ModuleType(_name)
sys.modules["trivup.clusters.KafkaCluster"].KafkaCluster = _Cluster


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
    settings={
        "listeners": {"PLAINTEXT": 0, "SASL_PLAINTEXT": 0},
        "sasl_mechanisms": ("PLAIN",),
        "users": {"sasl_user": "sasl_user"},
        **AUTHORIZER,
    },
    environment={"BROKERS": "{run.address}", "TEST_CONSUMER_GROUP_PROTOCOL": "{run.group_protocol}"},
)
