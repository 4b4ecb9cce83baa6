# SPDX-License-Identifier: Apache-2.0
"""Values that a test reads twice: a type checker takes an attribute for unchanged until it is assigned."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def unnarrowed(value: T) -> T:
    """The value itself; an assertion about it says nothing about the attribute when it is read again."""
    return value
