# SPDX-License-Identifier: Apache-2.0
"""API versions and features of a broker (KIP-35, KIP-511, KIP-584), and SASL authentication (KIP-43, KIP-152)."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, data, int16, int32, int64, string


class ApiVersionsRequest(Request, key=18, versions="0-5", flexible="3+"):
    """Request the supported APIs and versions, first on a connection. If it is too new, the response is version 0.

    With cluster_id and node_id, another broker responds REBOOTSTRAP_REQUIRED (KIP-1242).
    """

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)
    cluster_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    node_id: int = int32("5+", default=-1, ignorable=True)


class ApiVersion(Struct):
    """The versions of one API that a broker supports, both ends included."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    """The levels of a feature that a broker supports."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    """The finalized level of a feature in the cluster; `transaction.version` selects the transaction protocol."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Response, key=18, versions="0-5", flexible="3+"):
    """The APIs that a broker supports and the features of the cluster. Its header is always version 0."""

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)


class SaslHandshakeRequest(Request, key=17, versions="0-1", flexible="none"):
    """Select the SASL mechanism. From version 1 on the tokens are sent in SaslAuthenticate."""

    mechanism: str = string("0+")


class SaslHandshakeResponse(Response, key=17, versions="0-1", flexible="none"):
    """Whether the broker supports the mechanism, and the list of its mechanisms."""

    error_code: int = int16("0+")
    mechanisms: list[str] = array(string, "0+")


class SaslAuthenticateRequest(Request, key=36, versions="0-2", flexible="2+"):
    """One token of the mechanism, sent by the client."""

    auth_bytes: bytes = data("0+", secret=True)


class SaslAuthenticateResponse(Response, key=36, versions="0-2", flexible="2+"):
    """One token of the broker. session_lifetime_ms: time to authenticate again, 0 for no limit (KIP-368)."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = data("0+", secret=True)
    session_lifetime_ms: int = int64("1+", ignorable=True)
