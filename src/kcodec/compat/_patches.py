# SPDX-License-Identifier: Apache-2.0
"""Installation of classes of kcodec in the modules of another package, and their removal."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from kcodec.errors import DecodeError, UnsupportedError

T = TypeVar("T")
log = logging.getLogger("kcodec.compat")
# The names that install() of one client replaces, with the class of kcodec for each.
Replacements = Mapping[str, Any]


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, without self."""
    return tuple(name for name in inspect.signature(function).parameters if name != "self")


def check_signatures(
    package: str, found: str, known: str, signatures: Iterable[tuple[Any, str, tuple[str, ...]]]
) -> None:
    """Raise ImportError unless each (owner, dotted name, parameters) exists and has these parameters.

    found: The installed version.
    known: The version that has these signatures.
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
    """Return a replacement for the table of codecs of a producer, in which all codecs are available.

    For each codec, the table has a function that checks whether its package is installed, and the number of the codec.
    The check would refuse a codec whose package is missing, but the package is no longer needed.
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
    """Return whether a batch has an unknown codec. Both clients have an exception class for this."""
    return isinstance(error, UnsupportedError) and error.reason.startswith("compression id")


class Patches:
    """The replaced names of one client. install() and uninstall() can be called repeatedly, by any thread.

    package: The top-level package of the client. A replaced name is replaced in all of its modules that have the name.
        uninstall() also restores modules that have imported the name later.
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
        """Whether the classes of kcodec are installed."""
        return bool(self._ours)

    def original(self, name: str) -> Any:
        """Return the client's own object of this name, while the one of kcodec is installed."""
        return self._originals[name]

    def _modules(self) -> list[Any]:
        """Return the loaded modules of the client, except for compiled modules, which do not look up names."""
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
        """Replace every name.

        prepare: Function that returns the client's own objects by name, the objects of kcodec by name, and a list of
            objects, attributes and their replacements.
        """
        with self._lock:
            if self._ours:
                return
            originals, ours, attributes = prepare()
            self._originals, self._ours = dict(originals), dict(ours)
            self._swap(self._originals, self._ours)
            for owner, name, value in attributes:
                former = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
                self._attributes.append((owner, name, former))
                setattr(owner, name, value)

    def uninstall(self) -> None:
        """Restore every name."""
        with self._lock:
            for owner, name, value in reversed(self._attributes):
                setattr(owner, name, value)
            self._swap(self._ours, self._originals)
            self._originals, self._ours, self._attributes = {}, {}, []


def compiled_class(found: type, module: str) -> type:
    """Return the class of a compiled module from which a class derives, or which it is. An instrumentation may have put
    a subclass in its place.

    Raise ImportError if it does not derive from such a class.
    """
    for one in found.__mro__:
        if one.__module__ == module:
            return one
    raise ImportError(
        f"{found.__module__}.{found.__qualname__} does not derive from a class of {module}: call install() of "
        "kcodec.compat before the class is replaced"
    )


def moved_wrappers(
    found: type, package: str, method: Callable[[str], Any], compiled: type | None = None
) -> list[tuple[Any, str, Any]]:
    """Return the attributes to set so that the wrappers which an instrumentation has put around methods of a class call
    the methods of kcodec.

    Wrappers of the package wrapt can be changed. Log a warning for others.

    found:    The class, which may have been put in the place of the client's own class.
    package:  The package of the client, for the warning.
    method:   Function that returns the method of kcodec of a name, or None.
    compiled: If not None, move only wrappers that call a method of this class directly. Other wrappers follow the
              change of the bases.
    """
    moved, kept = [], []
    for name, value in [item for one in found.__mro__[:-1] for item in vars(one).items()]:
        if not hasattr(value, "__wrapped__") or type(value) in (classmethod, staticmethod):
            continue
        inner = value
        while callable(getattr(inner.__wrapped__, "__wrapped__", None)):
            inner = inner.__wrapped__
        if compiled is not None and inner.__wrapped__ is not vars(compiled).get(name):
            continue
        ours = method(name)
        if ours is None or not hasattr(inner, "_self_wrapper"):
            kept.append(name)
        else:
            moved.append((inner, "__wrapped__", ours))
    if kept:
        log.warning(
            "%s.%s: the wrapper of %s has no effect on the clients of kcodec, or its calls do not reach them: call "
            "install() of kcodec.compat before the wrapper is applied",
            package,
            found.__name__,
            ", ".join(kept),
        )
    return moved


def derived_from(base: type) -> Callable[[type[T]], type[T]]:
    """Return a decorator that derives a class from a class in C, without adding attributes in C.

    The class then has the layout of the base, and can replace it among the bases of the package's classes. Objects have
    a __dict__ only in classes that derive from the result.
    """

    def derive(methods: type[T]) -> type[T]:
        names = {name: value for name, value in vars(methods).items() if name not in {"__dict__", "__weakref__"}}
        made: Any = type(methods.__name__, (base,), {**names, "__slots__": ()})
        return cast("type[T]", made)

    return derive
