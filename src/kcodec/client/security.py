# SPDX-License-Identifier: Apache-2.0
"""The former place of `kcodec.client.Security`."""

from kcodec._lazy import moved_names

__getattr__ = moved_names("kcodec.client.security", {"Security": "kcodec.client"})
