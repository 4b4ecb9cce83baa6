# SPDX-License-Identifier: Apache-2.0
"""Lets Spark find ``format("kcodec")`` without a registration.

On the first use of any Python data source Spark imports every top-level module named ``pyspark_*`` and takes its
``DefaultSource``. An error there would take all other data sources down with it, so nothing is imported until Spark
asks. Where kcodec cannot be loaded, the data source is one that raises the reason as soon as it is used.
"""

from __future__ import annotations

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
        return _unavailable(error)
    return KcodecDataSource


def _unavailable(error: ImportError) -> type:
    """Return a data source that raises this error when it is used; AttributeError before Spark 4.0, which has none."""
    import sys

    reason = f'format("kcodec") cannot be loaded by {sys.executable}, the Python of Spark: {error}'
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:
        raise AttributeError(reason) from error

    class UnavailableSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "kcodec"

        def __init__(self, options: dict[str, str]) -> None:
            raise RuntimeError(reason)

    return UnavailableSource
