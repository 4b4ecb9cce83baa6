# SPDX-License-Identifier: Apache-2.0
"""Numbers in messages, with their unit: seconds, and counted things."""

from __future__ import annotations


def number_text(number: float) -> str:
    """Return a number without an exponent and without a fraction of zeros: "1800000", "0.5"."""
    return f"{number:.15g}"


def seconds_text(seconds: float) -> str:
    """Return a duration, rounded to hundredths: "30 s", "0.25 s". Below 5 ms it is rounded to microseconds, as "0 s"
    would hide that there was a timeout."""
    return f"{number_text(round(seconds, 2) or round(seconds, 6))} s"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things: "1 partition", "3 partitions". plural: for nouns whose plural is not formed with s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
