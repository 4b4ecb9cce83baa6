# SPDX-License-Identifier: Apache-2.0
"""Which version of an API to speak: ours, the broker's, and what the flow can do with (KIP-35, KIP-511, KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kcodec.errors import UnsupportedError

API_VERSIONS_KEY = 18


@dataclass(frozen=True)
class BrokerVersions:
    """What a broker said in ApiVersions.

    apis:               api key -> (lowest, highest) version it takes.
    finalized_features: name -> level that the whole cluster has agreed on, e.g. {"transaction.version": 2}.
    finalized_features_epoch: of that agreement; -1 where the broker does not know features.
    """

    apis: Mapping[int, tuple[int, int]]
    finalized_features: Mapping[str, int] = field(default_factory=dict)
    finalized_features_epoch: int = -1

    @classmethod
    def of(cls, response: Any) -> BrokerVersions:
        """From an ApiVersionsResponse."""
        return cls(
            {api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
            {feature.name: feature.max_version_level for feature in response.finalized_features},
            response.finalized_features_epoch,
        )

    def choose(self, kind: Any, lowest: int, highest: int, broker: str) -> int:
        """The highest version that the broker, our tables and the bounds of the caller allow. kind: a request class.

        Raises UnsupportedError that says who offers what.
        """
        offered = self.apis.get(kind.api_key)
        name = kind.__name__.removesuffix("Request")
        if offered is None:
            raise UnsupportedError(f"{broker} does not know {name}: its Kafka is too old, or does not offer it")
        ours = kind.versions
        version: int = min(offered[1], ours[1], highest)
        if version < max(offered[0], ours[0], lowest):
            wanted = f"{max(ours[0], lowest)} to {min(ours[1], highest)}"
            raise UnsupportedError(f"{broker} offers {name} versions {offered[0]} to {offered[1]}, wanted is {wanted}")
        return version


def fallback_version(broker_versions: BrokerVersions) -> int:
    """What to ask ApiVersions with after UNSUPPORTED_VERSION: the broker's highest, which it names even then; 0 if it
    does not."""
    return max(0, broker_versions.apis.get(API_VERSIONS_KEY, (0, 0))[1])
