# SPDX-License-Identifier: Apache-2.0
"""SaslHandshake and SaslAuthenticate, and the SCRAM credentials of users (KIP-554, ScramControlManager)."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from kcodec.broker.admin.host import AdminHost
from kcodec.broker.api import Api, ApiError, RequestContext
from kcodec.broker.login import LoginRefused
from kcodec.broker.scram_credentials import MECHANISM_NAMES, NUMBERS, credential_record, stored_credential
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.schema import MetadataRecord
from kcodec.security.scram import MINIMUM_ITERATIONS

MAXIMUM_ITERATIONS = 16_384

_Change: TypeAlias = messages.ScramCredentialDeletion | messages.ScramCredentialUpsertion


class UserApis:
    """The handlers of these APIs."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host

    def apis(self) -> list[Api]:
        """Return the APIs with their handlers."""
        return [
            Api(messages.SaslHandshakeRequest, (0, 1), self.handshake),
            Api(messages.SaslAuthenticateRequest, (0, 2), self.authenticate),
            Api(messages.DescribeUserScramCredentialsRequest, (0, 0), self.describe),
            Api(messages.AlterUserScramCredentialsRequest, (0, 0), self.alter),
        ]

    # SASL

    def handshake(
        self, context: RequestContext, request: messages.SaslHandshakeRequest
    ) -> messages.SaslHandshakeResponse:
        """Respond to SaslHandshake, which begins a login."""
        login = context.connection.login
        code = ErrorCode.ILLEGAL_SASL_STATE if login is None else login.begin(request.mechanism, context.api_version)
        offered = [] if code is ErrorCode.ILLEGAL_SASL_STATE else list(self._host.settings.sasl_mechanisms)
        return messages.SaslHandshakeResponse(error_code=code, mechanisms=offered)

    def authenticate(
        self, context: RequestContext, request: messages.SaslAuthenticateRequest
    ) -> messages.SaslAuthenticateResponse:
        """Respond to SaslAuthenticate, which contains a token of the client."""
        login = context.connection.login
        if login is None or login.user is not None:
            text = "SaslAuthenticate request received after successful authentication"
            return messages.SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        try:
            token, lifetime_ms = login.take(bytes(request.auth_bytes))
        except LoginRefused as refused:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return messages.SaslAuthenticateResponse(error_code=code, error_message=str(refused))
        return messages.SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms)

    # Credentials

    def describe(
        self, context: RequestContext, request: messages.DescribeUserScramCredentialsRequest
    ) -> messages.DescribeUserScramCredentialsResponse:
        """Respond to DescribeUserScramCredentials, without secrets."""
        known = self._host.topics.scram_credentials
        named = Counter([one.name for one in request.users or ()] or sorted({name for name, _ in known}))
        results = []
        for name, count in named.items():
            result = messages.DescribeUserScramCredentialsResult(user=name)
            result.credential_infos = [
                messages.ScramCredentialInfo(mechanism=number, iterations=known[name, mechanism].iterations)
                for mechanism, number in NUMBERS.items()
                if (name, mechanism) in known
            ]
            if count > 1:
                result.error_code = ErrorCode.DUPLICATE_RESOURCE
                result.error_message = (
                    f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
                )
                result.credential_infos = []
            elif not result.credential_infos:
                result.error_code = ErrorCode.RESOURCE_NOT_FOUND
                result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
            results.append(result)
        return messages.DescribeUserScramCredentialsResponse(results=results)

    def alter(
        self, context: RequestContext, request: messages.AlterUserScramCredentialsRequest
    ) -> messages.AlterUserScramCredentialsResponse:
        """Respond to AlterUserScramCredentials. A user with one invalid change keeps all credentials."""
        changes: list[_Change] = [*request.deletions, *request.upsertions]
        pairs = Counter((one.name, one.mechanism) for one in changes)
        results = {name: messages.AlterUserScramCredentialsResult(user=name, error_message=None) for name, _ in pairs}
        for one in changes:
            try:
                self._check(one)
                if pairs[one.name, one.mechanism] > 1:
                    text = "A user credential cannot be altered twice in the same request"
                    raise ApiError(ErrorCode.DUPLICATE_RESOURCE, text)
            except ApiError as error:
                found = results[one.name]
                found.error_code, found.error_message = error.code, error.message
        allowed = [one for one in changes if not results[one.name].error_code]
        self._host.topics.change_users([_record(one) for one in allowed])
        return messages.AlterUserScramCredentialsResponse(results=list(results.values()))

    def _check(self, change: _Change) -> None:
        mechanism = MECHANISM_NAMES.get(change.mechanism)
        if not change.name:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if mechanism is None:
            raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if isinstance(change, messages.ScramCredentialDeletion):
            if (change.name, mechanism) not in self._host.topics.scram_credentials:
                text = "Attempt to delete a user credential that does not exist"
                raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, text)
        elif change.iterations < MINIMUM_ITERATIONS:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        elif change.iterations > MAXIMUM_ITERATIONS:
            raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def _record(change: _Change) -> MetadataRecord:
    if isinstance(change, messages.ScramCredentialDeletion):
        return messages.RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    mechanism, salted, salt = MECHANISM_NAMES[change.mechanism], bytes(change.salted_password), bytes(change.salt)
    return credential_record(change.name, mechanism, stored_credential(mechanism, salted, salt, change.iterations))
