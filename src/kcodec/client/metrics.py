# SPDX-License-Identifier: Apache-2.0
"""Deprecated module: `Metrics` is exported by `kcodec.client`."""

from kcodec._lazy import moved_names

__getattr__ = moved_names("kcodec.client.metrics", {"Metrics": "kcodec.client", "NoMetrics": "kcodec.network.metrics"})
