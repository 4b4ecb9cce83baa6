# SPDX-License-Identifier: Apache-2.0
"""Deprecated module: `Secret` is exported by `kcodec.client`."""

from kcodec._lazy import moved_names

__getattr__ = moved_names("kcodec.protocol.secret", {"Secret": "kcodec.client"})
