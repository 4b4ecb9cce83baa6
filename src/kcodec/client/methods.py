# SPDX-License-Identifier: Apache-2.0
"""How a flow becomes a method of a public class, the same for threads and asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def dress(method: Any, flow: Callable[..., Any]) -> None:
    """Give a method its flow's name, docstring and signature, as help() shows them."""
    method.__name__ = method.__qualname__ = flow.__name__
    method.__doc__ = flow.__doc__
    found = inspect.signature(flow)
    first, *others = found.parameters.values()
    returned = str(found.return_annotation).removeprefix("Flow[").removesuffix("]")
    method.__signature__ = found.replace(
        parameters=[first.replace(name="self", annotation=first.empty), *others], return_annotation=returned
    )
