# SPDX-License-Identifier: Apache-2.0
"""Finding out what a broker speaks (KIP-35, KIP-511, features: KIP-584), and logging in (SASL: KIP-43, KIP-152)."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, data, int16, int32, int64, string


class ApiVersionsRequest(Request, key=18, versions="0-4", flexible="3+"):
    """Which APIs and versions do you speak? The first request of a connection; if too new, answered in version 0."""

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)


class ApiVersion(Struct):
    """The versions of one API that a broker takes, both ends included."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    """The levels of a feature that a broker could run at."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    """The level of a feature that the cluster runs at; `transaction.version` decides how transactions are spoken."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Response, key=18, versions="0-4", flexible="3+"):
    """What a broker speaks, and which features the cluster runs. Its header is always version 0."""

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)


class SaslHandshakeRequest(Request, key=17, versions="0-1", flexible="none"):
    """Which mechanism comes next; from version 1 on the tokens travel in SaslAuthenticate."""

    mechanism: str = string("0+")


class SaslHandshakeResponse(Response, key=17, versions="0-1", flexible="none"):
    """Whether the broker has that mechanism, and which ones it has."""

    error_code: int = int16("0+")
    mechanisms: list[str] = array(string, "0+")


class SaslAuthenticateRequest(Request, key=36, versions="0-2", flexible="2+"):
    """One token of the mechanism, from the client."""

    auth_bytes: bytes = data("0+", secret=True)


class SaslAuthenticateResponse(Response, key=36, versions="0-2", flexible="2+"):
    """One token from the broker. session_lifetime_ms: log in again within that time; 0: no need (KIP-368)."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = data("0+", secret=True)
    session_lifetime_ms: int = int64("1+", ignorable=True)
