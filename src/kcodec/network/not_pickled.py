# SPDX-License-Identifier: Apache-2.0
"""The error of a client that is pickled or copied."""

from __future__ import annotations

from typing import Any, NoReturn


class NotPickled:
    """The base of clients, which have connections and threads and can therefore not be pickled or copied."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name} cannot be pickled or copied, as it holds connections: create one in each process from the "
            "same options (for a transaction of several processes, use TransactionHandle and TransactionWriter)"
        )
