# SPDX-License-Identifier: Apache-2.0
"""Security from options: what is refused, what is warned of, and that no secret shows anywhere."""

from __future__ import annotations

import ast
import copy
import json
import logging
import pickle
import subprocess
import sys
import traceback
from typing import Any

import pytest

from kcodec.network.options import ClientConfig
from kcodec.security import SECRET_OPTIONS, SECURITY_OPTIONS, Security
from kcodec.security.aws_msk_iam import AwsCredentials
from kcodec.security.secret import Secret

PASSWORD = "correct-horse-battery-staple"
PLAIN: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
SCRAM: dict[str, Any] = {**PLAIN, "sasl_mechanism": "SCRAM-SHA-512"}
TOKEN: dict[str, Any] = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": lambda: PASSWORD}
OIDC: dict[str, Any] = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token_endpoint_url": "https://idp.example.org/token",
    "sasl_oauthbearer_client_id": "alice",
    "sasl_oauthbearer_client_secret": PASSWORD,
}
AWS: dict[str, Any] = {"sasl_mechanism": "AWS_MSK_IAM", "sasl_aws_credentials_provider": lambda: ("AKID", PASSWORD)}
ALL = {"plain": PLAIN, "scram": SCRAM, "token": TOKEN, "oidc": OIDC, "aws": AWS}


def secure(protocol: str = "SASL_SSL", **options: Any) -> Security:
    return Security.from_options({"security_protocol": protocol, **options})


@pytest.mark.parametrize("protocol", [None, "PLAINTEXT"])
def test_without_options_nothing_is_secured(protocol: str | None) -> None:
    security = Security.from_options({"security_protocol": protocol})
    assert repr(security) == "<Security PLAINTEXT>"
    assert security.tls_context() is None
    assert security.authenticate("localhost", lambda: 0.0) is None


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (PLAIN, "<Security SASL_SSL PLAIN user 'alice'>"),
        (SCRAM, "<Security SASL_SSL SCRAM-SHA-512 user 'alice'>"),
        (TOKEN, "<Security SASL_SSL OAUTHBEARER>"),
        (OIDC, "<Security SASL_SSL OAUTHBEARER>"),
        (AWS, "<Security SASL_SSL AWS_MSK_IAM>"),
    ],
)
def test_repr_shows_the_user_and_no_secret(options: dict[str, Any], shown: str) -> None:
    assert repr(secure(**options)) == shown


def everything_in(found: object, depth: int = 0) -> str:
    """The reprs of an object, of its attributes, and of theirs."""
    text = repr(found)
    attributes = {**getattr(found, "__dict__", {})}
    for kind in type(found).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if not isinstance(found, Secret):
                attributes[name] = getattr(found, name, None)
    if depth < 5 and type(found).__module__.startswith("kcodec"):
        text += "".join(everything_in(value, depth + 1) for value in attributes.values())
    return text


@pytest.mark.parametrize("name", ALL)
def test_no_secret_shows_at_any_depth(name: str) -> None:
    security = secure(**ALL[name])
    options = ClientConfig.take({"bootstrap_servers": "localhost:9092", "security_protocol": "SASL_SSL", **ALL[name]})
    assert PASSWORD not in everything_in(security) + everything_in(options)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_pickled(name: str) -> None:
    security = secure(**ALL[name])
    options = ClientConfig.take({"bootstrap_servers": "localhost:9092", "security_protocol": "SASL_SSL", **ALL[name]})
    for value in (security, options):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(value, protocol)
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(security)


def test_a_secret_is_blind() -> None:
    secret = Secret(PASSWORD)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>20}", "%s %r" % (secret, [secret])]  # noqa: UP031
    shown += [repr(AwsCredentials("AKID", secret)), traceback.format_exc(), repr({"password": secret})]
    assert PASSWORD not in "".join(shown)
    assert secret.reveal() == PASSWORD
    assert secret == Secret(PASSWORD)
    assert hash(secret) == hash(Secret(PASSWORD))
    assert secret != Secret("other")
    assert secret != PASSWORD
    for dump in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            dump(secret)
    with pytest.raises(TypeError, match="not bytes"):
        Secret(b"bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"security_protocol": "TLS"}, "security_protocol must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism must be one of PLAIN, SCRAM-SHA-256"),
        ({"security_protocol": "SASL_SSL", **PLAIN, "sasl_mechanism": "NTLM"}, "not 'NTLM'"),
        (PLAIN, "sasl_mechanism, sasl_plain_password, sasl_plain_username would have no effect .* 'SASL_SSL'"),
        ({"security_protocol": "SSL", **PLAIN}, "would have no effect with security_protocol='SSL'.* 'SASL_SSL'"),
        ({"ssl_cafile": "x"}, "ssl_cafile would have no effect with security_protocol='PLAINTEXT'; .* 'SSL'"),
        ({"security_protocol": "SASL_PLAINTEXT", **PLAIN, "ssl_cafile": "x"}, "ssl_cafile would have .* 'SASL_SSL'"),
        ({"security_protocol": "SASL_SSL", **PLAIN, "sasl_plain_password": None}, "sasl_plain_password is missing"),
        ({"security_protocol": "SASL_SSL", **PLAIN, "sasl_plain_username": ""}, "sasl_plain_username is missing"),
        ({"security_protocol": "SASL_SSL", **PLAIN, "sasl_plain_password": PASSWORD + "\0"}, "NUL"),
        ({"security_protocol": "SASL_SSL", **SCRAM, "sasl_plain_password": PASSWORD + "\ud800"}, "surrogate"),
        ({"security_protocol": "SASL_SSL", **PLAIN, "sasl_aws_region": "x"}, "sasl_aws_region would have no effect"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "neither is set"),
        ({"security_protocol": "SASL_SSL", **OIDC, **TOKEN}, "both are set"),
        (
            {"security_protocol": "SASL_SSL", **TOKEN, "sasl_oauthbearer_scope": "x"},
            "sasl_oauthbearer_scope would have",
        ),
        (
            {"security_protocol": "SASL_SSL", **TOKEN, "sasl_oauthbearer_extensions": {"auth": "x"}},
            "is not a valid name",
        ),
        (
            {"security_protocol": "SASL_SSL", **OIDC, "sasl_oauthbearer_ssl_cafile": "/no/file"},
            "sasl_oauthbearer_ssl_cafile",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_without_showing_secrets(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Security.from_options(options)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**PLAIN, "sasl_plain_password": PASSWORD.encode()}, "sasl_plain_password must be a str, not bytes"),
        ({**SCRAM, "sasl_scram_token_auth": "true"}, "sasl_scram_token_auth must be a bool, not str"),
        ({**PLAIN, "sasl_plain_username": 1}, "sasl_plain_username must be a str, not int"),
        ({**TOKEN, "sasl_oauth_token_provider": PASSWORD}, "sasl_oauth_token_provider must be callable"),
        ({**TOKEN, "sasl_oauthbearer_extensions": "a=b"}, "sasl_oauthbearer_extensions must be a dict"),
        ({**AWS, "sasl_aws_credentials_provider": PASSWORD}, "sasl_aws_credentials_provider must be callable"),
    ],
)
def test_options_of_the_wrong_type_are_type_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words) as caught:
        secure(**options)
    assert PASSWORD not in str(caught.value)


def test_a_password_may_be_wrapped_already() -> None:
    assert (
        repr(secure(**{**PLAIN, "sasl_plain_password": Secret(PASSWORD)})) == "<Security SASL_SSL PLAIN user 'alice'>"
    )


def test_secret_options_are_options() -> None:
    assert SECRET_OPTIONS < SECURITY_OPTIONS


@pytest.mark.parametrize(
    ("protocol", "options", "host", "warned"),
    [
        ("SASL_PLAINTEXT", PLAIN, "kafka.example.org", 1),
        ("SASL_PLAINTEXT", TOKEN, "10.0.0.1", 1),
        ("SASL_PLAINTEXT", PLAIN, "localhost", 0),
        ("SASL_PLAINTEXT", SCRAM, "kafka.example.org", 0),
        ("SASL_SSL", PLAIN, "kafka.example.org", 0),
    ],
)
def test_a_secret_without_tls_is_warned_of_once(
    protocol: str, options: dict[str, Any], host: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    security = secure(protocol, **options)
    for _ in range(2):
        flow = security.authenticate(host, lambda: 0.0)
        assert flow is not None
        flow.close()
    assert len(caplog.records) == warned
    assert all(record.levelno == logging.WARNING and host in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("host", "name"),
    [("kafka.example.org.", "kafka.example.org"), ("fe80::1%eth0", "fe80::1"), ("10.0.0.1", "10.0.0.1")],
)
def test_the_name_to_verify_is_the_one_dialled(host: str, name: str) -> None:
    assert secure(**PLAIN).server_hostname(host) == name


def test_who_secures_nothing_loads_nothing_for_it() -> None:
    program = "import sys, kcodec.network.options as o; o.Security.from_options({}); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(ast.literal_eval(done.stdout))
    assert "kcodec.security.options" in loaded
    assert not loaded & {"ssl", "urllib.request", "http.client", "kcodec.security.mechanisms"}


def test_new_credentials_apply_to_all_clients_of_a_security() -> None:
    shared = secure(**PLAIN)
    clients = [shared.for_client(), shared.for_client()]
    clients[0].change_credentials({"security_protocol": "SASL_SSL", **PLAIN, "sasl_plain_username": "bob"})
    for each in (shared, *clients):
        each.authenticate("localhost", lambda: 0.0)
        assert repr(each) == "<Security SASL_SSL PLAIN user 'bob'>"
        assert each._mechanism is not None and each._mechanism.principal == "user 'bob'"
