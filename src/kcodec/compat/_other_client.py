# SPDX-License-Identifier: Apache-2.0
"""The modules of another package, and the public values of its modules."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any


def client_module(name: str, package: str) -> Any:
    """Return the module `name` of the package `package`. If it is not installed, raise ImportError with the command
    that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0]:
            raise
        raise ImportError(f"kcodec.compat needs {package}: pip install {package}", name=error.name) from error


def value_of(name: str, modules: Iterable[str], package: str, clients: frozenset[str], facade: str) -> Any:
    """Return a public value of another client, for example TopicPartition, but neither a module nor one of `clients`.
    Raise AttributeError, as the module `facade`, if it has no such value."""
    is_private = name.startswith("_")  # tools look up such names, and must not import the other client
    for each in () if is_private or name in clients else modules:
        module = client_module(each, package)
        found = getattr(module, name, None)
        # Without __all__, a module also has the names that it imports. confluent_kafka's compiled classes are in cimpl.
        home = str(getattr(found, "__module__", "")).split(".")[0]
        is_own = name in getattr(module, "__all__", ()) or home in (each.split(".")[0], "cimpl")
        if not inspect.ismodule(found) and (is_own or (name.isupper() and isinstance(found, int))):
            return found
    raise AttributeError(f"module {facade!r} has no attribute {name!r}")
