# SPDX-License-Identifier: Apache-2.0
"""The choice of an API version: what kcodec and the broker support, and what the caller can use (KIP-35, KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kcodec.errors import UnsupportedError
from kcodec.protocol.fields import HIGHEST_VERSION

__all__ = ["BrokerVersions", "fallback_version"]

API_VERSIONS_KEY = 18


@dataclass(frozen=True)
class BrokerVersions:
    """The content of a broker's ApiVersions response.

    apis:               api key -> (lowest, highest) version that the broker supports.
    finalized_features: name -> finalized level of the cluster, e.g. {"transaction.version": 2}.
    finalized_features_epoch: the epoch of these levels; -1 if the broker does not support features.
    """

    apis: Mapping[int, tuple[int, int]]
    finalized_features: Mapping[str, int] = field(default_factory=dict)
    finalized_features_epoch: int = -1

    @classmethod
    def of(cls, response: Any) -> BrokerVersions:
        """Return the versions that an ApiVersionsResponse contains.

        response: The decoded response.
        """
        return cls(
            {api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
            {feature.name: feature.max_version_level for feature in response.finalized_features},
            response.finalized_features_epoch,
        )

    def choose(self, kind: Any, lowest: int = 0, highest: int = HIGHEST_VERSION, broker: str = "the broker") -> int:
        """Return the highest version that the broker, kcodec and the caller's bounds allow.

        kind: A request class.
        lowest, highest: The versions that the caller can use.
        broker: The name of the broker in errors.

        Raise UnsupportedError, which names the supported versions of both sides.
        """
        offered = self.apis.get(kind.api_key)
        name = kind.__name__.removesuffix("Request")
        if offered is None:
            raise UnsupportedError(f"{broker} does not support {name}: its Kafka is too old, or has this API disabled")
        ours = kind.versions
        version: int = min(offered[1], ours[1], highest)
        if version < max(offered[0], ours[0], lowest):
            needed = f"{max(ours[0], lowest)} to {min(ours[1], highest)}"
            raise UnsupportedError(
                f"{broker} supports {name} versions {offered[0]} to {offered[1]}, but kcodec needs {needed}"
            )
        return version


def fallback_version(broker_versions: BrokerVersions) -> int:
    """Return the version to retry ApiVersions with after UNSUPPORTED_VERSION: the broker's highest, or 0 if it names
    none.

    broker_versions: The content of the response with the error.
    """
    return max(0, broker_versions.apis.get(API_VERSIONS_KEY, (0, 0))[1])
