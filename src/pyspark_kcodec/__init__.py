# SPDX-License-Identifier: Apache-2.0
"""Lets Spark find ``format("kcodec")`` without a registration.

On the first use of any Python data source Spark imports every top-level module named ``pyspark_*`` and takes its
``DefaultSource``. An error there would take all other data sources down with it, so nothing is imported until Spark
asks, and where kcodec cannot be loaded the module simply has no ``DefaultSource``; the reason is logged.
"""

from __future__ import annotations

import logging

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.spark.source import KcodecDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> type:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from kcodec.spark.source import KcodecDataSource
    except ImportError as error:
        logging.getLogger(__name__).warning('format("kcodec") cannot be loaded: %s', error)
        raise AttributeError(f"DefaultSource cannot be loaded: {error}") from error
    return KcodecDataSource
