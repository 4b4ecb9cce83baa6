# SPDX-License-Identifier: Apache-2.0
"""Credentials of AWS for AWS_MSK_IAM: from a callable, from the environment, or from botocore where it is installed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from kcodec.errors import AuthenticationError
from kcodec.security.aws_msk_iam import AwsCredentials
from kcodec.security.secret import Secret

#: Blocks until there are credentials.
CredentialsProvider = Callable[[], AwsCredentials]

_MISSING = (
    "no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sasl_aws_credentials_provider,"
    " or pip install kcodec[aws] to have botocore look where AWS's own tools do"
)


def provider_of(given: Any, environment: Mapping[str, str] = os.environ) -> CredentialsProvider:
    """Where credentials come from: `given` (sasl_aws_credentials_provider: callable, gives AwsCredentials or a tuple of
    access key id, secret access key and, of temporary ones, session token), else the environment, else botocore.

    Raises TypeError if `given` cannot be called; what it returns raises AuthenticationError when there are none.
    """
    if given is None:
        if not environment.get("AWS_ACCESS_KEY_ID"):
            # `_found` runs on a daemon thread, which must not import (kcodec.network.preload).
            with contextlib.suppress(ImportError):
                import_module("botocore.session")
        return lambda: _found(environment)
    if not callable(given):
        raise TypeError(f"sasl_aws_credentials_provider must be callable, not {type(given).__name__}")

    def ask() -> AwsCredentials:
        try:
            credentials = given()
        except Exception as error:  # a stranger's code: whatever it raises, the login failed
            raise AuthenticationError(f"sasl_aws_credentials_provider raised {type(error).__name__}") from error
        return _checked(credentials)

    return ask


def _checked(given: Any) -> AwsCredentials:
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise AuthenticationError(
            f"sasl_aws_credentials_provider gave a {type(given).__name__}; expected AwsCredentials or"
            " (access_key_id, secret_access_key[, session_token])"
        )
    key_id, secret, token = given if len(given) == 3 else (*given, None)
    if (
        not isinstance(key_id, str)
        or not isinstance(secret, str | Secret)
        or not isinstance(token, str | Secret | None)
    ):
        raise AuthenticationError("sasl_aws_credentials_provider gave credentials that are no strings")
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
        raise AuthenticationError(f"botocore found no AWS credentials: {type(error).__name__}") from error
    if frozen is None or not frozen.access_key or not frozen.secret_key:
        raise AuthenticationError(_MISSING)
    return AwsCredentials(frozen.access_key, Secret(frozen.secret_key), Secret(frozen.token) if frozen.token else None)
