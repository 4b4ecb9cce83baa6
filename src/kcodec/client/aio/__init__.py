# SPDX-License-Identifier: Apache-2.0
"""The clients of `kcodec.client` for asyncio: the same names, the same flows, awaited."""
