# SPDX-License-Identifier: Apache-2.0
"""The former place of `kcodec.client.Metrics`."""

from kcodec._lazy import moved_names

__getattr__ = moved_names("kcodec.client.metrics", {"Metrics": "kcodec.client", "NoMetrics": "kcodec.network.metrics"})
