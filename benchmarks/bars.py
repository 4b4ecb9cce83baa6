# SPDX-License-Identifier: Apache-2.0
"""Tables of the bars, which run.py prints next to the measured figures. Rows are codecs, columns are shapes."""

from __future__ import annotations

# Minimum ratio of aiokafka's time to kcodec's, for decoding to pyarrow on one thread with CRC checks.
TIMES_AIOKAFKA = {
    "none": {"a": 30.0, "b": 20.0, "c": 33.0, "d": 28.0},
    "lz4": {"a": 10.0, "b": 3.7, "c": 14.0, "d": 25.0},
    "zstd": {"a": 5.0, "b": 1.9, "c": 7.0, "d": 6.5},
    "gzip": {"a": 5.3, "b": 3.7, "c": 6.3, "d": 5.3},
    "snappy": {"a": 4.7, "b": 2.1, "c": 11.0, "d": 22.0},
}
# The same if a libzstd, the system's or the package's, is called directly.
TIMES_AIOKAFKA_LIBZSTD = {"a": 5.5, "b": 2.3, "c": 8.5, "d": 8.0}

# The floor is only valid if the ratio of its uncompressed time to CRC + memcpy, in the same run, is at most this.
FLOOR_OVER_LIMIT = {"a": 2.7 * 1.1, "b": 1.2 * 1.1, "c": 5.2 * 1.1, "d": 4.3 * 1.1}

VIEWS_OVER_FLOOR = 0.72
TWO_THREADS_OF_FLOOR_GAIN = 0.9
TWO_THREADS_NEVER_BELOW = 0.95
ONE_THREAD_SECONDS = 0.002
# gzip and zstd of tiny batches gain if a library is called directly, without the GIL.
GAIN_SHAPES = {"none": "abcd", "lz4": "abcd", "snappy": "abcd", "zstd": "abcd", "gzip": "abcd"}

HALF_ABORTED = {
    "none": {"a": 0.66, "b": 0.76, "c": 0.62, "d": 0.68},
    "zstd": {"a": 0.55, "b": 0.55, "c": 0.55, "d": 0.55},
}
NOTHING_ABORTED = 1.03

# Uncompressed, from Arrow, against aiokafka's builder and against the floor.
ENCODE_TIMES_AIOKAFKA = {"a": 7.5, "b": 11.0, "c": 7.5, "d": 9.0}
ENCODE_OVER_FLOOR = 1.25
ENCODE_OVER_RUST = 1.0  # not slower than the Rust library kafka-protocol, uncompressed

SEGMENT_BYTES = 1 << 30
SEGMENT_MEGABYTES = 200.0
IMPORT_MILLISECONDS = 25.0
NOT_IMPORTED = ("numpy", "crc32c", "pyarrow", "pyspark")


def over_floor(shape: str, codec: str) -> float:
    """Return the maximum ratio of kcodec's time to the floor's."""
    if codec == "none":
        return 1.2
    return 1.4 if shape == "d" else 1.25


def times_aiokafka(shape: str, codec: str, *, calls_libzstd: bool) -> float | None:
    """Return the minimum ratio of aiokafka's time to kcodec's; None if there is no bar (shape e)."""
    if codec == "zstd" and calls_libzstd:
        return TIMES_AIOKAFKA_LIBZSTD.get(shape)
    return TIMES_AIOKAFKA[codec].get(shape)
