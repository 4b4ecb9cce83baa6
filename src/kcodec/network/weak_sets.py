# SPDX-License-Identifier: Apache-2.0
"""The members of a WeakSet that several threads use."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import weakref

T = TypeVar("T")


def members_of(objects: weakref.WeakSet[T]) -> list[T]:
    """Return the members, although another thread may add one meanwhile: the iteration of a WeakSet then raises
    RuntimeError."""
    while True:
        try:
            return list(objects)
        except RuntimeError:
            continue
