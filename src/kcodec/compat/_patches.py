# SPDX-License-Identifier: Apache-2.0
"""Installation of our classes in the modules of another package, and their removal."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from kcodec.errors import DecodeError, UnsupportedError

T = TypeVar("T")
# What install() of one client replaces: public name -> our class.
Replacements = Mapping[str, Any]


def client_module(name: str, package: str) -> Any:
    """Return the module `name` of the package `package`. Raise ImportError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0]:
            raise
        raise ImportError(f"kcodec.compat needs {package}: pip install {package}", name=error.name) from error


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, without self."""
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


def check_signatures(
    package: str, found: str, known: str, signatures: Iterable[tuple[Any, str, tuple[str, ...]]]
) -> None:
    """Raise ImportError unless each (owner, dotted name, parameters) exists and has these parameters.

    found: The installed version. known: The version that has these signatures.
    """
    for owner, path, expected in signatures:
        target = owner
        for name in path.split("."):
            target = None if target is None else getattr(target, name, None)
        there = parameters(target) if callable(target) else None
        if there != expected:
            why = "is missing" if there is None else f"takes ({', '.join(there)}) instead of ({', '.join(expected)})"
            raise ImportError(
                f"{package} {found} is not supported by kcodec.compat, which is made for {known}: "
                f"{owner.__name__}.{path} {why}; pip install '{package}=={known}'"
            )


def every_codec(producer: Any, package: str, found: str) -> tuple[Any, str, object]:
    """Return a producer's table of codecs, name -> (function that looks for their package, number), without the look.

    It would refuse a codec whose package is missing, and the package is no longer needed.
    """
    table = producer.__dict__.get("_COMPRESSORS")
    if not isinstance(table, dict) or not all(isinstance(row, tuple) and len(row) == 2 for row in table.values()):
        raise ImportError(
            f"{package} {found} is not supported by kcodec.compat: {producer.__name__} has no table of codecs"
        )
    return producer, "_COMPRESSORS", {name: (_is_there, number) for name, (_, number) in table.items()}


def _is_there() -> bool:
    return True


def is_unknown_codec(error: DecodeError) -> bool:
    """Return whether a batch has an unknown codec; both clients have an exception class for that."""
    return isinstance(error, UnsupportedError) and error.reason.startswith("compression id")


class Patches:
    """The replaced names of one client. install() and uninstall() can be called repeatedly, by any thread.

    package: The client's top package. Every module of it that has a replaced name gets ours; uninstall() also restores
    modules that got it later.
    """

    def __init__(self, package: str, compiled: tuple[str, ...] = ()) -> None:
        self._package = package
        self._compiled = compiled
        self._originals: dict[str, Any] = {}
        self._ours: dict[str, Any] = {}
        self._attributes: list[tuple[Any, str, Any]] = []
        self._lock = threading.Lock()

    @property
    def installed(self) -> bool:
        """Whether our classes are installed."""
        return bool(self._ours)

    def original(self, name: str) -> Any:
        """Return the client's own object of this name, while ours is installed."""
        return self._originals[name]

    def _modules(self) -> list[Any]:
        """Return the loaded modules of the client, but those that are compiled and look nothing up by name."""
        inside = f"{self._package}."
        return [
            module
            for name, module in list(sys.modules.items())
            if (name == self._package or name.startswith(inside)) and not name.startswith(self._compiled or "\0")
        ]

    def _swap(self, present: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for module in self._modules():
            for name, value in present.items():
                if module.__dict__.get(name) is value:
                    setattr(module, name, wanted[name])

    def install(self, prepare: Callable[[], tuple[Replacements, Replacements, list[tuple[Any, str, Any]]]]) -> None:
        """prepare() gives the client's own objects by name, ours by name, and (class, attribute, ours)."""
        with self._lock:
            if self._ours:
                return
            originals, ours, attributes = prepare()
            self._originals, self._ours = dict(originals), dict(ours)
            self._swap(self._originals, self._ours)
            for owner, name, value in attributes:
                self._attributes.append((owner, name, owner.__dict__[name]))
                setattr(owner, name, value)

    def uninstall(self) -> None:
        """Restore every name."""
        with self._lock:
            for owner, name, value in self._attributes:
                setattr(owner, name, value)
            self._swap(self._ours, self._originals)
            self._originals, self._ours, self._attributes = {}, {}, []


def derived_from(base: type) -> Callable[[type[T]], type[T]]:
    """Return a decorator that derives a class from a class in C, without attributes of its own in C.

    So it has the layout of the base and can replace it among the bases of the package's classes. Objects have a
    __dict__ only in classes that derive from the result.
    """

    def derive(methods: type[T]) -> type[T]:
        names = {name: value for name, value in vars(methods).items() if name not in {"__dict__", "__weakref__"}}
        made: Any = type(methods.__name__, (base,), {**names, "__slots__": ()})
        return cast("type[T]", made)

    return derive
