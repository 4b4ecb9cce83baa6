# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: delegation tokens (KIP-48). KIP-373 added tokens for another owner.

A broker issues tokens only to clients that have authenticated without a token.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from kcodec.arguments import items_of, numbers_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, results, whole
from kcodec.cluster.retry_routes import AnyBroker, Controller
from kcodec.flow import Flow
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.security.secret import Secret

#: Value for the broker's own limit, delegation.token.max.lifetime.ms or delegation.token.expiry.time.ms.
BROKERS_LIMIT = -1
#: Value for a token that expires immediately.
AT_ONCE = -1
#: Errors for a token that has expired.
GONE = frozenset({ErrorCode.DELEGATION_TOKEN_NOT_FOUND, ErrorCode.DELEGATION_TOKEN_EXPIRED})


@dataclass(frozen=True)
class KafkaPrincipal:
    """A user, with the name and type that brokers use.

    name: Name of the user.
    type: Type of the principal.
    """

    name: str
    type: str = "User"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


@dataclass(frozen=True)
class DelegationToken:
    """A delegation token. Times are in ms since 1970.

    token_id: Id of the token, which is also its user name.
    hmac: Secret of the token. In base64, it is the password of the token. It is not shown in the repr.
    owner: Principal whose permissions the token gives.
    requester: Principal that has created the token; None if the broker does not report it (Kafka before 3.3).
    renewers: Principals that may renew the token in addition to its owner.
    issue_timestamp: Time at which the token was created.
    expiry_timestamp: Time at which the token expires unless it is renewed.
    max_timestamp: Time at which the token expires in any case.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: KafkaPrincipal
    requester: KafkaPrincipal | None
    renewers: tuple[KafkaPrincipal, ...]
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int

    @property
    def password(self) -> Secret:
        """The secret in base64. It is the sasl_plain_password of a client with sasl_scram_token_auth=True. The
        sasl_plain_username of this client is the token_id."""
        return Secret(b64encode(self.hmac).decode())


def create_delegation_token(
    context: CallContext,
    *,
    owner: KafkaPrincipal | None = None,
    renewers: Iterable[KafkaPrincipal] = (),
    max_lifetime_ms: int | None = None,
    timeout: float | None = None,
) -> Flow[DelegationToken]:
    """Create a delegation token, and return it with its secret.

    The controller and the brokers know the token a moment later. Until then, they respond with
    DELEGATION_TOKEN_NOT_FOUND.

    owner: Principal whose permissions the token gives. None: the user of this client. Another owner requires Kafka 3.3.
    renewers: Principals that may renew the token in addition to its owner.
    max_lifetime_ms: Time after which the token expires in any case. None: the broker's limit.

    A request that may have reached the broker is not repeated, because it would create a second token. If its response
    is lost, raise UnknownOutcomeError. The token may then exist; `describe_delegation_tokens` returns it.

    Raise ValueError or TypeError if an argument is invalid. Raise AuthorizationError without CREATE_TOKENS on the
    owner. Raise BrokerError with one of these codes:
    - DELEGATION_TOKEN_AUTH_DISABLED if the brokers do not issue tokens;
    - DELEGATION_TOKEN_REQUEST_NOT_ALLOWED if the client has not logged in, or has logged in with a token;
    - INVALID_PRINCIPAL_TYPE.
    """
    chosen = items_of(renewers, KafkaPrincipal, "renewers")
    if owner is not None and not isinstance(owner, KafkaPrincipal):
        raise TypeError(f"owner: expected KafkaPrincipal, got {owner!r} of type {type(owner).__name__}")
    lifetime = _period(max_lifetime_ms, "max_lifetime_ms", BROKERS_LIMIT)
    handler: ApiHandler[str, DelegationToken] = ApiHandler(
        "create",
        Controller(context.cluster),
        lambda items, until: messages.CreateDelegationTokenRequest(
            owner_principal_type=None if owner is None else owner.type,
            owner_principal_name=None if owner is None else owner.name,
            renewers=[messages.CreatableRenewers(principal_type=one.type, principal_name=one.name) for one in chosen],
            max_lifetime_ms=lifetime,
        ),
        lambda response, items: whole(response, items, lambda response: _created(response, tuple(chosen))),
        named=str,
        is_repeatable=lambda item: False,
        lowest=1 if owner is None else 3,
    )
    return (yield from results(context, [A_TOKEN], handler, timeout))[A_TOKEN]


A_TOKEN = "a delegation token"


def _period(given: int | None, parameter: str, default: int) -> int:
    """Return a time in ms, or the default for None. Raise ValueError for another negative number, because brokers take
    it as their own limit, or as "immediately"."""
    if given is None:
        return default
    (number,) = numbers_of([given], parameter)
    if number < 0 and number != default:
        raise ValueError(f"{parameter} must be at least 0 ms, got {number}; None is the default")
    return number


def _check_hmac(hmac: bytes) -> None:
    if not isinstance(hmac, bytes | bytearray | memoryview):
        raise TypeError(f"hmac: expected bytes, got {type(hmac).__name__}; decode a password in base64 first")


def _created(response: Any, renewers: tuple[KafkaPrincipal, ...]) -> DelegationToken:
    times = response.issue_timestamp_ms, response.expiry_timestamp_ms, response.max_timestamp_ms
    return _token(response, renewers, *times)


def _token(token: Any, renewers: tuple[KafkaPrincipal, ...], *times: int) -> DelegationToken:
    owner = KafkaPrincipal(token.principal_name, token.principal_type)
    requester = KafkaPrincipal(token.token_requester_principal_name, token.token_requester_principal_type)
    return DelegationToken(
        token.token_id, bytes(token.hmac), owner, requester if requester.name else None, renewers, *times
    )


def renew_delegation_token(
    context: CallContext, hmac: bytes, *, renew_period_ms: int | None = None, timeout: float | None = None
) -> Flow[int]:
    """Make a token expire later, and return the new time at which it expires, in ms since 1970.

    hmac: Secret of the token (`DelegationToken.hmac`).
    renew_period_ms: Time from now until the token expires. None: the broker's delegation.token.expiry.time.ms.

    Raise ValueError or TypeError if an argument is invalid. Raise BrokerError with the codes DELEGATION_TOKEN_NOT_FOUND
    or DELEGATION_TOKEN_EXPIRED, or with DELEGATION_TOKEN_OWNER_MISMATCH if the user is neither the owner nor a renewer.
    Raise the BrokerErrors of `create_delegation_token`, too.
    """
    period = _period(renew_period_ms, "renew_period_ms", BROKERS_LIMIT)
    _check_hmac(hmac)
    request = messages.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period)
    return (yield from results(context, [A_TOKEN], _new_end(context, "renew", request), timeout))[A_TOKEN]


def expire_delegation_token(
    context: CallContext, hmac: bytes, *, expiry_time_period_ms: int | None = None, timeout: float | None = None
) -> Flow[int]:
    """Make a token expire sooner, and return the new time at which it expires, in ms since 1970.

    hmac: Secret of the token (`DelegationToken.hmac`).
    expiry_time_period_ms: Time from now until the token expires. None deletes the token immediately.

    A request whose response is lost is repeated. If the token then no longer exists, the call returns the current time.

    Raise the errors of `renew_delegation_token`.
    """
    period = _period(expiry_time_period_ms, "expiry_time_period_ms", AT_ONCE)
    _check_hmac(hmac)
    request = messages.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period)
    handler = replace(
        _new_end(context, "expire", request),
        is_reached=lambda item, code: code in GONE,
        read=lambda response, items: whole(
            response, items, lambda response: context.now() if response.error_code else response.expiry_timestamp_ms
        ),
    )
    return (yield from results(context, [A_TOKEN], handler, timeout))[A_TOKEN]


def _new_end(context: CallContext, action: str, request: Any) -> ApiHandler[str, int]:
    """Return the handler of a request that changes the time at which a token expires. The result is this time."""
    return ApiHandler(
        action,
        Controller(context.cluster),
        lambda items, until: request,
        lambda response, items: whole(response, items, lambda response: int(response.expiry_timestamp_ms)),
        named=str,
        lowest=1,
    )


def describe_delegation_tokens(
    context: CallContext, owners: Iterable[KafkaPrincipal] | None = None, *, timeout: float | None = None
) -> Flow[dict[str, DelegationToken]]:
    """Return delegation tokens by their ids: those that the user of this client owns, may renew or may describe.

    owners: Principals. Only tokens that one of them owns or may renew are returned. None: all tokens.

    Raise the BrokerErrors of `create_delegation_token`.
    """
    chosen = None if owners is None else items_of(owners, KafkaPrincipal, "owners")
    principals = [
        messages.DescribeDelegationTokenOwner(principal_type=one.type, principal_name=one.name) for one in chosen or ()
    ]
    handler: ApiHandler[str, dict[str, DelegationToken]] = ApiHandler(
        "describe",
        AnyBroker(),
        lambda items, until: messages.DescribeDelegationTokenRequest(owners=None if chosen is None else principals),
        lambda response, items: whole(response, items, _described),
        named=str,
        lowest=1,
    )
    return (yield from results(context, ["delegation tokens"], handler, timeout))["delegation tokens"]


def _described(response: Any) -> dict[str, DelegationToken]:
    return {
        one.token_id: _token(
            one,
            tuple(KafkaPrincipal(renewer.principal_name, renewer.principal_type) for renewer in one.renewers),
            *(one.issue_timestamp, one.expiry_timestamp, one.max_timestamp),
        )
        for one in response.tokens
    }
