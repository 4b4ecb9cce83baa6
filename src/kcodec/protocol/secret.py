# SPDX-License-Identifier: Apache-2.0
"""The former place of `kcodec.client.Secret`."""

from kcodec._lazy import moved_names

__getattr__ = moved_names("kcodec.protocol.secret", {"Secret": "kcodec.client"})
