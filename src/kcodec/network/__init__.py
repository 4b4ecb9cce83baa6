# SPDX-License-Identifier: Apache-2.0
"""How bytes and time move: connections, sockets, TLS, and the thread and asyncio loops that run flows."""
