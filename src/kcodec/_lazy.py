# SPDX-License-Identifier: Apache-2.0
"""Public names that are imported at their first use (PEP 562), and names that have moved.

This keeps the import of a package fast.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(
    package: str, exports: "Mapping[str, str]", submodules: "tuple[str, ...]" = ()
) -> "tuple[Callable[[str], object], Callable[[], list[str]]]":
    """Return `__getattr__` and `__dir__` for a package.

    exports:    public name -> full name of the module that defines it.
    submodules: names of modules of the package itself that are imported when they are first used.
    """
    import sys

    def __getattr__(name: str) -> object:  # noqa: N807
        """Import a public name when it is first used."""
        import importlib

        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(exports[name]), name)
        vars(sys.modules[package])[name] = found
        return found

    def __dir__() -> "list[str]":  # noqa: N807
        """Return all public names, including those that are not imported yet."""
        return sorted({*vars(sys.modules[package]), *exports, *submodules})

    return __getattr__, __dir__


def moved_names(old: str, names: "Mapping[str, str]") -> "Callable[[str], object]":
    """Return `__getattr__` for a module whose public names have moved; each use is a DeprecationWarning.

    names: name -> full name of the module from which it is public now.
    """

    def __getattr__(name: str) -> object:  # noqa: N807
        """Import a name from where it is now."""
        import importlib
        import warnings

        if name not in names:
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        warnings.warn(f"{old}.{name} has moved: import it from {names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(names[name]), name)

    return __getattr__
