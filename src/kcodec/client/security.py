# SPDX-License-Identifier: Apache-2.0
"""Deprecated module: `Security` is exported by `kcodec.client`."""

from kcodec._lazy import moved_names

__getattr__ = moved_names("kcodec.client.security", {"Security": "kcodec.client"})
