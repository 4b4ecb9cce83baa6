# SPDX-License-Identifier: Apache-2.0
"""AWS_MSK_IAM: Amazon MSK's own mechanism. We sign a request that nobody sends, and the broker checks the signature.

What is signed is ``GET /?Action=kafka-cluster:Connect`` to the broker's host, as a presigned URL of Signature Version 4
for the service kafka-cluster; what is sent is the URL's parameters as JSON. The broker answers with a JSON of its own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote

from kcodec.security.sasl import Exchange, ExchangeRefused
from kcodec.security.secret import Secret

SERVICE = "kafka-cluster"
ACTION = "kafka-cluster:Connect"
ALGORITHM = "AWS4-HMAC-SHA256"
PAYLOAD_VERSION = "2020_10_22"
#: Seconds for which a signature counts; what MSK's own library sets.
SIGNATURE_SECONDS = 900
#: MSK answers in some 100 bytes.
MAXIMUM_ANSWER_BYTES = 4096

_NOT_MSK = "check that this listener is one for IAM (port 9098, or 9198 for public access)"
_HOST_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com(?:\.cn)?$")


class AwsCredentials(NamedTuple):
    """Whoever signs. session_token: of temporary credentials, else None."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None


def region_of(host: str) -> str | None:
    """The region in the name of a broker of MSK, None for other names.

    >>> region_of("b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com")
    'eu-west-1'
    """
    match = _HOST_REGION.search(host)
    return match[1] if match else None


def signing_key(secret_access_key: Secret, date: str, region: str, service: str) -> bytes:
    """Signature Version 4's key for a day (YYYYMMDD), a region and a service."""
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
    """The query of a presigned GET, with X-Amz-Signature as its last parameter.

    timestamp: YYYYMMDDTHHMMSSZ. payload_hash: hex SHA-256 of the body, of an empty one if None.
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
    """What AWS_MSK_IAM sends: the parameters in lower case, and what they were signed for."""
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
    """The client's side. Raises ExchangeRefused if the answer is not MSK's."""
    answer = yield payload(host, region, credentials, timestamp, user_agent)
    try:
        fields = json.loads(answer[:MAXIMUM_ANSWER_BYTES])
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.get("version") != PAYLOAD_VERSION:
        raise ExchangeRefused("the response is not that of MSK: '{quoted}'", _NOT_MSK, answer)
