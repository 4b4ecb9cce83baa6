# SPDX-License-Identifier: Apache-2.0
"""AWS_MSK_IAM, the mechanism of Amazon MSK: the client signs a request that is never sent, and the broker verifies it.

The signed request is ``GET /?Action=kafka-cluster:Connect`` to the broker's host, as a presigned URL of Signature
Version 4 for the service kafka-cluster. The client sends the URL's parameters as JSON, and the broker responds in JSON.
Credentials come from a callable, from the environment, or from botocore if it is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import quote

from kcodec.errors import AuthenticationError, TransportError
from kcodec.security.sasl import Exchange, ExchangeRefused, json_object
from kcodec.security.secret import Secret

SERVICE = "kafka-cluster"
ACTION = "kafka-cluster:Connect"
ALGORITHM = "AWS4-HMAC-SHA256"
PAYLOAD_VERSION = "2020_10_22"
#: Seconds for which a signature counts; what MSK's own library sets.
SIGNATURE_SECONDS = 900
#: A response of MSK has some 100 bytes.
MAXIMUM_RESPONSE_BYTES = 4096

_NOT_MSK = "check that this is a listener for IAM (port 9098, or 9198 for public access)"
_MISSING = (
    "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set sasl_aws_credentials_provider, "
    "or install the package botocore, so that botocore searches where AWS tools do"
)
_HOST_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com(?:\.cn)?$")


class AwsCredentials(NamedTuple):
    """Credentials for signing. session_token: of temporary credentials, otherwise None."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None


#: Blocks until there are credentials.
CredentialsProvider = Callable[[], AwsCredentials]


def region_of(host: str) -> str | None:
    """Return the region in the name of an MSK broker, None for other names.

    >>> region_of("b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com")
    'eu-west-1'
    """
    match = _HOST_REGION.search(host)
    return match[1] if match else None


def signing_key(secret_access_key: Secret, date: str, region: str, service: str) -> bytes:
    """Return the signing key of Signature Version 4 for a day (YYYYMMDD), a region and a service."""
    key = f"AWS4{secret_access_key.reveal()}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def presign(
    parameters: Mapping[str, str],
    *,
    host: str,
    credentials: AwsCredentials,
    region: str,
    service: str,
    timestamp: str,
    seconds: int,
    path: str = "/",
    payload_hash: str | None = None,
) -> dict[str, str]:
    """Return the query of a presigned GET, with X-Amz-Signature as its last parameter.

    timestamp: YYYYMMDDTHHMMSSZ. payload_hash: hex SHA-256 of the body; None means an empty body.
    """
    date = timestamp[:8]
    scope = f"{date}/{region}/{service}/aws4_request"
    query = {
        **parameters,
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key_id}/{scope}",
        "X-Amz-Date": timestamp,
        "X-Amz-Expires": str(seconds),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token is not None:
        query["X-Amz-Security-Token"] = credentials.session_token.reveal()
    canonical_query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(query[name], safe='-_.~')}" for name in sorted(query)
    )
    body = payload_hash or hashlib.sha256(b"").hexdigest()
    canonical = f"GET\n{path}\n{canonical_query}\nhost:{host}\n\nhost\n{body}"
    to_sign = f"{ALGORITHM}\n{timestamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = signing_key(credentials.secret_access_key, date, region, service)
    query["X-Amz-Signature"] = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return query


def payload(host: str, region: str, credentials: AwsCredentials, timestamp: str, user_agent: str) -> bytes:
    """Return the client's message: the signed parameters, their names in lower case."""
    query = presign(
        {"Action": ACTION},
        host=host,
        credentials=credentials,
        region=region,
        service=SERVICE,
        timestamp=timestamp,
        seconds=SIGNATURE_SECONDS,
    )
    fields = {"version": PAYLOAD_VERSION, "host": host, "user-agent": user_agent}
    fields |= {name.lower(): value for name, value in query.items()}
    return json.dumps(fields, separators=(",", ":")).encode()


def aws_msk_iam(host: str, region: str, credentials: AwsCredentials, timestamp: str, user_agent: str) -> Exchange:
    """Run the client's side of the exchange. Raise ExchangeRefused if the response is not that of MSK."""
    response = yield payload(host, region, credentials, timestamp, user_agent)
    if json_object(response[:MAXIMUM_RESPONSE_BYTES]).get("version") != PAYLOAD_VERSION:
        raise ExchangeRefused("the response does not come from MSK: '{quoted}'", _NOT_MSK, response)


def provider_of(given: Any, environment: Mapping[str, str] = os.environ) -> CredentialsProvider:
    """Return a callable that provides credentials: `given`, otherwise the environment, otherwise botocore.

    given: sasl_aws_credentials_provider, a callable that returns AwsCredentials or a tuple of access key id, secret
    access key and, for temporary credentials, session token. Raise TypeError if `given` is not callable. The returned
    callable raises AuthenticationError if there are no credentials, and TransportError if `given` raises an exception.
    """
    if given is None:
        if not environment.get("AWS_ACCESS_KEY_ID"):
            # `_found` runs on a daemon thread, which must not import (kcodec.network.preload).
            with contextlib.suppress(ImportError):
                import_module("botocore.session")
        return lambda: _found(environment)
    if not callable(given):
        raise TypeError(f"sasl_aws_credentials_provider must be callable, not {type(given).__name__}")

    def provide() -> AwsCredentials:
        try:
            credentials = given()
        except AuthenticationError:
            raise
        except Exception as error:  # of the application's code, mostly because a server is unavailable
            raise TransportError(f"sasl_aws_credentials_provider raised {type(error).__name__}") from error
        return _checked(credentials)

    return provide


def _checked(given: Any) -> AwsCredentials:
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise AuthenticationError(
            f"sasl_aws_credentials_provider returned a {type(given).__name__}; expected AwsCredentials or"
            " (access_key_id, secret_access_key[, session_token])"
        )
    key_id, secret, token = given if len(given) == 3 else (*given, None)
    if (
        not isinstance(key_id, str)
        or not isinstance(secret, str | Secret)
        or not isinstance(token, str | Secret | None)
    ):
        types = ", ".join(type(part).__name__ for part in given)
        raise AuthenticationError(
            f"sasl_aws_credentials_provider returned values of the types ({types}); expected (str, str[, str])"
        )
    return AwsCredentials(key_id, _secret(secret), None if token is None else _secret(token))


def _secret(value: str | Secret) -> Secret:
    return value if isinstance(value, Secret) else Secret(value)


def _found(environment: Mapping[str, str]) -> AwsCredentials:
    key_id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if key_id and secret:
        token = environment.get("AWS_SESSION_TOKEN")
        return AwsCredentials(key_id, Secret(secret), Secret(token) if token else None)
    return _from_botocore()


def _from_botocore() -> AwsCredentials:
    try:
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session
    except ImportError:
        raise AuthenticationError(_MISSING) from None
    try:
        credentials = get_session().get_credentials()
        frozen = None if credentials is None else credentials.get_frozen_credentials()
    except BotoCoreError as error:
        raise AuthenticationError(
            f"botocore found no AWS credentials ({type(error).__name__}); check the AWS profile, or set "
            "sasl_aws_credentials_provider"
        ) from error
    if frozen is None or not frozen.access_key or not frozen.secret_key:
        raise AuthenticationError(_MISSING)
    return AwsCredentials(frozen.access_key, Secret(frozen.secret_key), Secret(frozen.token) if frozen.token else None)
