# SPDX-License-Identifier: Apache-2.0
"""Passwords and tokens: a provider gives them where a process connects, and Spark writes them down nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from unsigned_jwt import jwt

from kcodec.spark.client_options import TOKEN_PROVIDER, client_option, with_credentials
from kcodec.testing.kafka import ApacheKafka

PASSWORD, WRONG = "alice-secret", "wr0ng-s3cret"
PROVIDER = """
def password():
    return {password!r}

def user_and_password():
    return "alice", {password!r}

def wrong():
    return {wrong!r}

def token():
    return {token!r}, 3600.0

number = 7
"""


@pytest.fixture(scope="module")
def token() -> str:
    now = int(time.time())
    signed = jwt({"sub": "alice", "iat": now, "exp": now + 3600})
    return signed.rpartition(".")[0] + "."  # without a signature, which this broker accepts


@pytest.fixture(scope="module")
def provider(token: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the module provided_secrets, which this process can import, too."""
    folder = tmp_path_factory.mktemp("provider")
    text = PROVIDER.format(password=PASSWORD, wrong=WRONG, token=token)
    (folder / "provided_secrets.py").write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("provided_secrets", None)


@pytest.mark.spark
def test_no_secret_is_in_plans_logs_the_ui_events_and_checkpoints(
    java_home: Path, tmp_path: Path, provider: Path, token: str
) -> None:
    script = Path(__file__).parent.parent / "support" / "spark_secrets.py"
    with ApacheKafka(sasl=("PLAIN", "OAUTHBEARER")) as kafka:
        base = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.security.protocol": "SASL_PLAINTEXT"}
        plain = {**base, "kafka.sasl.mechanism": "PLAIN"}
        login = (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{PASSWORD}";'
        )
        options = {
            "password": {**plain, TOKEN_PROVIDER: "provided_secrets:user_and_password"},
            "token": {**base, "kafka.sasl.mechanism": "OAUTHBEARER", TOKEN_PROVIDER: "provided_secrets:token"},
            "wrong": {**plain, "kafka.sasl.plain.username": "alice", TOKEN_PROVIDER: "provided_secrets:wrong"},
            "in the options": {**plain, "kafka.sasl.jaas.config": login},
        }
        topic = kafka.create_topic(partitions=1)
        (tmp_path / "cases.json").write_text(json.dumps({"topic": topic, "options": options}))
        support = script.parent / "spark_daemon"  # imports of Python workers, as of the fixture `spark`
        path = os.pathsep.join(filter(None, [str(provider), str(support), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
        ran = subprocess.run(
            [sys.executable, str(script), str(tmp_path)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        written = kafka.end_offset(topic, 0)
    seen = {**json.loads((tmp_path / "seen.json").read_text()), "output": ran.stdout + ran.stderr}
    # 20 rows each of a batch and of a stream, but for the wrong password.
    assert written == 3 * 40, seen["errors"]
    assert seen["errors"].count("Authentication failed: Invalid username or password") >= 3
    # The searches do find what Spark writes down.
    for place, text in {
        "UI": "case token",
        "event log": "case token",
        "checkpoints": "batchWatermarkMs",
        "JVM log": "INFO org.apache.spark.scheduler.DAGScheduler",
        "output": "tasks that succeeded",
        "token: plan of map_batches": "MapInArrow",
        "token: streaming query": "WriteToMicroBatchDataSource",
        "token: plan of the source": "kcodec",
        "token: stream of the source": "numInputRows",
        "token: plan of a table": "kcodec",
        "token: columns of a table": "kcodec.options",
        "token: Parquet files of a table": "provided_secrets:token",
        "errors": "a table must not have the option 'kafka.sasl.jaas.config'",
    }.items():
        assert text in seen[place]
    secrets = (PASSWORD, WRONG, token, token.split(".")[1])
    found = [(place, secret) for place, text in seen.items() for secret in secrets if secret in text]
    assert not found


def test_a_provider_gives_what_the_mechanism_takes(provider: Path, token: str) -> None:
    def found(mechanism: str, function: str, **more: str) -> dict[str, object]:
        options = {"sasl_mechanism": mechanism, TOKEN_PROVIDER: f"provided_secrets:{function}", **more}
        return {name: value for name, value in with_credentials(options).items() if name != "sasl_mechanism"}

    assert found("PLAIN", "user_and_password") == {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    alice = {"sasl_plain_username": "alice"}
    assert found("SCRAM-SHA-256", "password", **alice) == {**alice, "sasl_plain_password": PASSWORD}
    (name, function), *others = found("OAUTHBEARER", "token").items()
    assert name == "sasl_oauth_token_provider"
    assert callable(function)
    assert function() == (token, 3600.0)
    assert not others
    assert [*found("AWS_MSK_IAM", "token")] == ["sasl_aws_credentials_provider"]
    assert with_credentials({"client_id": "x"}) == {"client_id": "x"}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("kafka.sasl.kerberos.keytab", "/etc/a.keytab", {"sasl_kerberos_keytab": "/etc/a.keytab"}),
        ("kafka.sasl.jaas.config", "x.Krb5LoginModule required useTicketCache=true;", {}),
        ("kafka.ssl.truststore.type", "PEM", {}),
        ("kafka.no.such.option", "x", {"no_such_option": "x"}),
    ],
)
def test_a_property_that_only_confirms_a_default_sets_no_option(
    name: str, value: str, expected: dict[str, object]
) -> None:
    assert client_option(name, value) == expected


@pytest.mark.parametrize(
    ("provider_name", "mechanism", "text"),
    [
        (
            "no_such_module:f",
            "PLAIN",
            "cannot be imported: No module named 'no_such_module'; the module",
        ),
        (
            "provided_secrets:nothing",
            "PLAIN",
            "cannot be imported: .* has no attribute 'nothing'",
        ),
        ("provided_secrets:number", "PLAIN", "which is a int, not a function"),
        ("provided_secrets:password", None, "needs the option 'kafka.sasl.mechanism', one of OAUTHBEARER, AWS_MSK_IAM"),
    ],
)
def test_a_provider_that_cannot_be_used(provider: Path, provider_name: str, mechanism: str | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        with_credentials({"sasl_mechanism": mechanism, TOKEN_PROVIDER: provider_name})


@pytest.mark.parametrize("name", ["module", "module:", ":function", ""])
def test_the_name_of_a_provider_has_a_module_and_a_function(name: str) -> None:
    with pytest.raises(ValueError, match="expected module:function"):
        client_option("KCODEC.token.provider", name)


def test_a_token_in_the_place_of_its_provider_is_not_shown() -> None:
    with pytest.raises(ValueError, match="expected module:function") as caught:
        client_option("kcodec.token.provider", "eyJhbGciOiJub25lIn0")
    assert "eyJhbGci" not in str(caught.value)
