# SPDX-License-Identifier: Apache-2.0
"""The members of a WeakSet that several threads use."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import weakref

T = TypeVar("T")


def members_of(objects: weakref.WeakSet[T]) -> list[T]:
    """Return the members, even if another thread adds one meanwhile. The iteration of a WeakSet then raises
    RuntimeError, so it is repeated."""
    while True:
        try:
            return list(objects)
        except RuntimeError:
            continue
