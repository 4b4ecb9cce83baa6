# SPDX-License-Identifier: Apache-2.0
"""Values that a test reads twice, although a type checker assumes that an attribute is unchanged until it is
assigned."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def unnarrowed(value: T) -> T:
    """Return the value, so that an assertion about it does not narrow the type of the attribute."""
    return value
