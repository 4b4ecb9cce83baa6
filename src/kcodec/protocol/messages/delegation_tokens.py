# SPDX-License-Identifier: Apache-2.0
"""Delegation tokens (KIP-48; for another owner: KIP-373). The hmac of a token is its password."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, data, int16, int32, int64, string


class CreatableRenewers(Struct):
    """A principal that may renew the token."""

    principal_type: str = string("0+")
    principal_name: str = string("0+")


class CreateDelegationTokenRequest(Request, key=38, versions="0-3", flexible="2+"):
    """Create a token. Without an owner it is of the user that requests it. max_lifetime_ms -1: the broker's limit."""

    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: list[CreatableRenewers] = array(CreatableRenewers, "0+")
    max_lifetime_ms: int = int64("0+")


class CreateDelegationTokenResponse(Response, key=38, versions="0-3", flexible="2+"):
    """The token."""

    error_code: int = int16("0+")
    principal_type: str = string("0+")
    principal_name: str = string("0+")
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64("0+")
    expiry_timestamp_ms: int = int64("0+")
    max_timestamp_ms: int = int64("0+")
    token_id: str = string("0+")
    hmac: bytes = data("0+", secret=True)
    throttle_time_ms: int = int32("0+")


class RenewDelegationTokenRequest(Request, key=39, versions="0-2", flexible="2+"):
    """Make a token expire later. renew_period_ms -1: the broker's period."""

    hmac: bytes = data("0+", secret=True)
    renew_period_ms: int = int64("0+")


class RenewDelegationTokenResponse(Response, key=39, versions="0-2", flexible="2+"):
    """When it expires now."""

    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")


class ExpireDelegationTokenRequest(Request, key=40, versions="0-2", flexible="2+"):
    """Make a token expire after this period; below 0: delete it now."""

    hmac: bytes = data("0+", secret=True)
    expiry_time_period_ms: int = int64("0+")


class ExpireDelegationTokenResponse(Response, key=40, versions="0-2", flexible="2+"):
    """When it expires."""

    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")


class DescribeDelegationTokenOwner(Struct):
    """An owner of tokens."""

    principal_type: str = string("0+")
    principal_name: str = string("0+")


class DescribeDelegationTokenRequest(Request, key=41, versions="0-3", flexible="2+"):
    """Request the tokens of these owners; None: all tokens that the user may see."""

    owners: list[DescribeDelegationTokenOwner] | None = array(DescribeDelegationTokenOwner, "0+", nullable="0+")


class DescribedDelegationTokenRenewer(Struct):
    """A principal that may renew the token."""

    principal_type: str = string("0+")
    principal_name: str = string("0+")


class DescribedDelegationToken(Struct):
    """A token."""

    principal_type: str = string("0+")
    principal_name: str = string("0+")
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp: int = int64("0+")
    expiry_timestamp: int = int64("0+")
    max_timestamp: int = int64("0+")
    token_id: str = string("0+")
    hmac: bytes = data("0+", secret=True)
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer, "0+")


class DescribeDelegationTokenResponse(Response, key=41, versions="0-3", flexible="2+"):
    """The tokens."""

    error_code: int = int16("0+")
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken, "0+")
    throttle_time_ms: int = int32("0+")
