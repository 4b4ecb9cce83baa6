# SPDX-License-Identifier: Apache-2.0
"""I/O of a client: connections, sockets, TLS, and the thread and asyncio loops that run flows."""
