# SPDX-License-Identifier: Apache-2.0
"""The API reference of the documentation site, from signatures, stubs and docstrings, as reStructuredText.

`docs/conf.py` replaces each block ``{public-names} MODULE`` of a page by `reference(MODULE)`. Sphinx's autodoc is not
used: it finds no signatures for the classes of the compiled core, which are in the stub `_fast.pyi`, and it would
interpret the docstrings of kcodec, which are plain text, as reStructuredText.

An entry is a public function, class, exception or constant. `Entry.lacks()` returns what is missing in it.
tests/project/test_api_reference.py fails for every gap that is not in tests/lint/reference_gaps.txt, which this program
writes: python tools/api_reference.py > tests/lint/reference_gaps.txt
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ForwardRef, is_typeddict

from docstring_markup import as_rst

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "src" / "kcodec" / "_fast.pyi"

#: The modules whose names are public, in the order in which a name that several of them export gets its entry.
MODULES = (
    "kcodec",
    "kcodec.client",
    "kcodec.client.aio",
    "kcodec.log",
    "kcodec.log.check",
    "kcodec.spark",
    "kcodec.broker",
    "kcodec.text",
    "kcodec.protocol.frame",
    "kcodec.protocol.versions",
    "kcodec.protocol.schema",
    "kcodec.protocol.error_codes",
    "kcodec.admin.values",
    "kcodec.admin.groups",
    "kcodec.admin.security",
    "kcodec.admin.transactions",
    "kcodec.admin.open_transactions",
    "kcodec.admin.quotas",
    "kcodec.consumer.lag",
    "kcodec.consumer.health",
    "kcodec.observe.prometheus",
    "kcodec.observe.opentelemetry",
    "kcodec.testing.bounded_reads",
    "kcodec.testing.kafka",
    "kcodec.testing.proxy",
    "kcodec.testing.pytest_plugin",
    "kcodec.compat.aiokafka",
    "kcodec.compat.kafka_python",
)
#: Clients with the methods and parameters of another package, whose own documentation explains them (docs/compat-*.md).
OF_OTHER_PACKAGES = {"AIOKafkaAdminClient", "AIOKafkaConsumer", "AIOKafkaProducer"}
#: Special methods whose meaning Python's own documentation explains.
USUAL = {
    "__enter__",
    "__exit__",
    "__aenter__",
    "__aexit__",
    "__iter__",
    "__aiter__",
    "__next__",
    "__anext__",
    "__len__",
}


@dataclass
class Entry:
    """A public name: where it is documented, its signature without the name, and its docstring."""

    name: str
    module: str
    kind: str
    signature: str
    text: str
    value: Any
    members: list[Entry] = field(default_factory=list)
    is_compiled: bool = False

    @property
    def full_name(self) -> str:
        """Return the name by which the site refers to it."""
        return f"{self.module}.{self.name}"

    def parameters(self) -> list[str]:
        """Return the names of the parameters of a function or constructor, as callers see them."""
        try:
            tree = ast.parse(f"def f{self.signature or '()'}: ...").body[0]
        except SyntaxError:
            return []
        assert isinstance(tree, ast.FunctionDef)
        arguments = tree.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        usual = {"self", "cls", "positional"}
        return [one.arg for one in named if one.arg not in usual and not one.arg.startswith("_")]

    def lacks(self) -> Iterator[str]:
        """Yield what is missing: a docstring, a signature, a parameter in no docstring, the unit of a timeout."""
        if not self.text.strip() and not self.full_name.endswith("__call__"):
            yield f"{self.full_name}: no docstring"
        for one in self.members:
            if not one.text.strip() and one.kind != "value" and not names(self.text, one.name):
                yield f"{one.full_name}: no docstring, and the class does not explain it"
        for call in (self, *self.members):
            if call.kind not in ("function", "method", "coroutine", "class"):
                continue
            if call.is_compiled and not call.signature:
                yield f"{call.full_name}: no signature in {STUB.name}"
            described = f"{call.text}\n{self.text}\n{explained_elsewhere(call.text + self.text)}"
            known = {one.name for one in call.members}
            for parameter in call.parameters():
                if parameter not in known and not names(described, parameter):
                    yield f"{call.full_name}: nothing explains the parameter {parameter}"
            if "timeout" in call.parameters() and not re.search(r"\bseconds?\b|\bs\b", described):
                yield f"{call.full_name}: the unit of timeout is not stated"


def names(text: str, word: str) -> bool:
    """Return whether a text has a word."""
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def explained_elsewhere(text: str) -> str:
    """Return the docstrings of the public functions to which a text refers, as "Options are those of encode()" does."""
    referred = set(re.findall(r"\b(\w+)(?:\(\)|`)", text))
    return "\n".join(texts_by_name()[name] for name in referred & texts_by_name().keys())


@cache
def texts_by_name() -> dict[str, str]:
    """Return the docstrings of all public functions, methods and classes by their last name."""
    found: dict[str, str] = {}
    for module in MODULES:
        for entry in entries(module):
            for one in (entry, *entry.members):
                if one.kind != "attribute":
                    found[one.name] = f"{found.get(one.name, '')}\n{one.text}"
    return found


# Collecting the entries.


@cache
def stub_nodes() -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """Return the classes and functions that the stub of the core declares, by name; the last of overloads."""
    nodes = ast.parse(STUB.read_text(encoding="utf-8")).body
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@cache
def attribute_texts(kind: type) -> dict[str, str]:
    """Return the string below each annotated field of a class, which Python drops when it compiles the class."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    body = ast.parse(inspect.cleandoc(f"\n{source}") if source[0].isspace() else source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            text = after.value.value if isinstance(after.value, ast.Constant) else None
            if isinstance(text, str):
                found[node.target.id] = inspect.cleandoc(text)
    return found


def stub_signature(node: ast.FunctionDef | ast.AsyncFunctionDef, value: object = None) -> str:
    """Return the signature in the stub, on one line, with the defaults of `value` in place of `...`."""
    if callable(value):
        live = inspect.signature(value).parameters
        given = [*node.args.posonlyargs, *node.args.args][::-1], node.args.defaults[::-1]
        pairs = [*zip(*given, strict=False), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        for one, stated in pairs:
            if isinstance(stated, ast.Constant) and stated.value is ... and one.arg in live:
                stated.value = live[one.arg].default
    arguments = ast.unparse(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({arguments}){returns}"


def live_signature(value: Callable[..., Any]) -> str:
    """Return the signature of a Python function or class, with its annotations as they are written."""
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    kept = [one for one in signature.parameters.values() if one.name not in ("positional",)]
    return shown(signature.replace(parameters=kept))


def shown(signature: inspect.Signature) -> str:
    """Return a signature that Sphinx can read: annotations without quotes, and `...` for a default whose repr is not
    code."""
    parts: list[str] = []
    seen_star = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not seen_star:
            parts.append("*")
        seen_star |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        text = stars + one.name
        if one.annotation is not one.empty:
            text += f": {annotation(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {default(one.default)}"
        parts.append(text)
    returns = "" if signature.return_annotation is signature.empty else annotation(signature.return_annotation)
    return f"({', '.join(parts)})" + (f" -> {returns}" if returns else "")


def annotation(value: Any) -> str:
    """Return an annotation as its source has it."""
    if isinstance(value, ForwardRef):  # of a NamedTuple
        value = value.__forward_arg__
    if isinstance(value, str):
        return value.strip("'\"")
    return value.__qualname__ if isinstance(value, type) and value.__module__ != "types" else str(value)


def default(value: Any) -> str:
    """Return a default as a caller writes it, or `...`."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return "..."
    return text


def is_core(value: Any) -> bool:
    """Return whether a class or function belongs to the compiled core."""
    return getattr(value, "__module__", "") == "kcodec._fast"


def public_names(module: str) -> list[str]:
    """Return the public names of a module: `__all__`, or the classes that it defines. Facades are left out."""
    loaded = importlib.import_module(module)
    listed = getattr(loaded, "__all__", None)
    if listed is not None:
        return [name for name in listed if name not in OF_OTHER_PACKAGES]
    return [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and isinstance(value, type) and value.__module__ == module
    ]


@cache
def homes() -> dict[int, str]:
    """Return where each public object has its entry, by identity: the first module of MODULES that exports it."""
    found: dict[int, str] = {}
    for module in MODULES:
        for name in public_names(module):
            value = getattr(importlib.import_module(module), name)
            if isinstance(value, type | types.FunctionType) or is_core(value):
                found.setdefault(id(value), f"{module}.{name}")
    return found


@cache
def entries(module: str) -> list[Entry]:
    """Return the entries of a module, without the names that have one in another module."""
    loaded = importlib.import_module(module)
    found = []
    for name in public_names(module):
        value = getattr(loaded, name)
        if homes().get(id(value), f"{module}.{name}") == f"{module}.{name}":
            found.append(entry_of(name, module, value))
    return found


def entry_of(name: str, module: str, value: Any) -> Entry:
    """Return the entry of one public name."""
    if isinstance(value, type):
        return class_entry(name, module, value)
    text = inspect.getdoc(value) or ""
    if callable(value) and not isinstance(value, types.GenericAlias):
        node = stub_nodes().get(name) if is_core(value) else None
        signature = stub_signature(node, value) if isinstance(node, ast.FunctionDef) else live_signature(value)
        return Entry(name, module, "function", signature, text, value, is_compiled=is_core(value))
    return Entry(name, module, "data", "", constant_text(module, name), value)


def constant_text(module: str, name: str) -> str:
    """Return the ``#:`` comment above a constant, or the repr of its value."""
    source = Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8")
    above = re.search(rf"((?:^#: .*\n)+){re.escape(name)}\b", source, re.MULTILINE)
    value = getattr(sys.modules[module], name)
    described = " ".join(line.removeprefix("#: ") for line in above[1].splitlines()) + "\n\n" if above else ""
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else repr(value)
    return f"{described}Value: {text}" if not text.startswith("<") else described or f"A {type(value).__name__}."


def class_entry(name: str, module: str, kind: type) -> Entry:
    """Return the entry of a class with its public attributes and methods."""
    text = inspect.getdoc(kind) or ""
    node = stub_nodes().get(kind.__name__) if is_core(kind) else None
    if isinstance(node, ast.ClassDef):
        entry = Entry(name, module, "class", constructor(node), text, kind, is_compiled=True)
        entry.members = list(stub_members(node, module, name, kind))
        return entry
    is_exception = issubclass(kind, BaseException)
    own_text = kind.__doc__ or ""
    if issubclass(kind, enum.Enum):
        entry = Entry(name, module, "class", "", inspect.cleandoc(own_text), kind)
        values = {one.name: one for one in kind}
        entry.members = [
            Entry(key, f"{module}.{name}", "value", f" = {one.value!r}", "", one) for key, one in values.items()
        ]
        return entry
    # Users do not create exceptions and TypedDicts; their attributes and keys are documented instead.
    signature = "" if is_exception or is_typeddict(kind) else live_signature(kind)
    if is_typeddict(kind):
        bases = [base.__name__ for base in getattr(kind, "__orig_bases__", ()) if is_typeddict(base)]
        text += "".join(f"\n\nAlso all keys of `kcodec.client.{base}`." for base in bases)
    entry = Entry(
        name, module, "exception" if is_exception else "class", signature.removesuffix(" -> None"), text, kind
    )
    entry.members = list(live_members(kind, f"{module}.{name}"))
    return entry


def constructor(node: ast.ClassDef) -> str:
    """Return the parameters of the constructor of a class of the core; "()" if only kcodec creates instances."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__"):
            if "Never" in ast.unparse(one.args):
                return "()"
            one.args.args = one.args.args[1:]
            return stub_signature(one).partition(" -> ")[0]
    return "()"


def stub_members(node: ast.ClassDef, module: str, owner: str, kind: type) -> Iterator[Entry]:
    """Yield properties and methods of a class of the core, as its stub declares them."""
    done = set()
    for one in node.body:
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) or one.name in done or one.name.startswith("_"):
            continue
        done.add(one.name)
        text = inspect.cleandoc(ast.get_docstring(one) or "")
        is_property = any(ast.unparse(mark) == "property" for mark in one.decorator_list)
        if is_property:
            returns = f": {ast.unparse(one.returns)}" if one.returns else ""
            yield Entry(one.name, f"{module}.{owner}", "attribute", returns, text, getattr(kind, one.name, None))
            continue
        one.args.args = [each for each in one.args.args if each.arg not in ("self", "cls")]
        signature = stub_signature(one)
        yield Entry(one.name, f"{module}.{owner}", "method", signature, text, None, is_compiled=True)


def live_members(kind: type, owner: str) -> Iterator[Entry]:
    """Yield fields, properties and methods of a Python class, including those of base classes in kcodec."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("kcodec")]
    seen: set[str] = set()
    fields = {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for base in ours:
        texts = attribute_texts(base)
        for name, annotated in vars(base).get("__annotations__", {}).items():
            is_shown = name in texts or (name in fields and not is_typeddict(kind))
            if not name.startswith("_") and name not in seen and is_shown and "ClassVar" not in annotation(annotated):
                seen.add(name)
                yield Entry(name, owner, "attribute", f": {annotation(annotated)}", texts.get(name, ""), None)
    for base in ours:
        for name, value in vars(base).items():
            if name in seen or (name.startswith("_") and name != "__call__"):
                continue
            seen.add(name)
            if isinstance(value, property):
                returns = getattr(value.fget, "__annotations__", {}).get("return")
                typed = f": {annotation(returns)}" if returns else ""
                yield Entry(name, owner, "attribute", typed, inspect.getdoc(value) or "", value)
            elif isinstance(value, types.FunctionType | classmethod | staticmethod):
                function: Any = getattr(value, "__func__", value)
                signature = without_self(live_signature(function), isinstance(value, staticmethod))
                text = inspect.getdoc(getattr(kind, name)) or ""
                kind_of = "coroutine" if inspect.iscoroutinefunction(function) else "method"
                yield Entry(name, owner, kind_of, signature, text, function)


def without_self(signature: str, is_static: bool) -> str:
    """Return the signature of a method as a caller sees it."""
    return signature if is_static else re.sub(r"^\((?:self|cls)(?:: [^,)]+)?(?:, )?", "(", signature)


# Other tables of the site.


def exceptions_by_call() -> str:
    """Return a Markdown table of the exceptions that the docstring of each public call names."""
    errors = {entry.name: entry.full_name for entry in entries("kcodec") if entry.kind == "exception"}
    builtin = ("ValueError", "TypeError", "FileNotFoundError", "OSError", "RuntimeError")
    lines = ["| call | exceptions |", "| --- | --- |"]
    for module in MODULES:
        for entry in entries(module):
            calls = [entry, *entry.members] if entry.kind == "class" else [entry] if entry.kind == "function" else []
            for call in calls:
                words = dict.fromkeys(re.findall(r"\b[A-Z]\w+\b", call.text))
                named = [f"`{word}`" for word in words if word in errors or word in builtin]
                if named and call.kind in ("function", "method", "coroutine", "class"):
                    owner = "" if call is entry else f"{entry.name}."
                    lines.append(f"| `{module}.{owner}{call.name}` | {', '.join(named)} |")
    return "\n".join(lines) + "\n"


def command_help(command: str) -> str:
    """Return what ``kcodec COMMAND --help`` prints."""
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, "-m", "kcodec", *command.split(), "--help"]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


# Pages.


@cache
def targets() -> frozenset[str]:
    """Return the full names of all entries."""
    return frozenset(f"{module}.{name}" for module in MODULES for name in public_names(module)) & frozenset(
        homes().values()
    )


DIRECTIVES = {
    "function": "py:function",
    "class": "py:class",
    "exception": "py:exception",
    "data": "py:data",
    "method": "py:method",
    "coroutine": "py:method",
    "attribute": "py:attribute",
    "value": "py:attribute",
}


def reference(module: str) -> str:
    """Return the reference of one module as reStructuredText."""
    lines = [f".. py:currentmodule:: {module}", ""]
    for entry in sorted(
        entries(module), key=lambda one: (one.kind == "data", one.kind == "exception", one.name.lower())
    ):
        lines += draw(entry, "")
    elsewhere = [name for name in public_names(module) if name not in {one.name for one in entries(module)}]
    moved = [homes().get(id(getattr(importlib.import_module(module), name))) for name in elsewhere]
    if elsewhere:
        links = ", ".join(f":py:obj:`{name} <{home}>`" for name, home in zip(elsewhere, moved, strict=True))
        lines += [f"Also available here: {links}.", ""]
    return "\n".join(lines)


def draw(entry: Entry, indent: str) -> list[str]:
    """Return the directive of an entry, with its members inside."""
    inner = indent + "   "
    name = entry.name
    head = f"{indent}.. {DIRECTIVES[entry.kind]}:: {name}"
    lines = []
    if entry.kind in ("attribute", "value"):
        lines.append(head)
        mark, text = ("type", entry.signature[2:]) if entry.kind == "attribute" else ("value", entry.signature[3:])
        lines += [f"{inner}:{mark}: {text}"] if text else []
    else:
        lines.append(head + entry.signature.replace("\\", "\\\\"))
        lines += [f"{inner}:async:"] if entry.kind == "coroutine" else []
    lines.append("")
    members = [one.name for one in entry.members if one.kind == "attribute"]
    named = (*entry.parameters(), *members, *exception_attributes(entry))
    body = as_rst(entry.text, named, targets())
    if isinstance(entry.value, type) and entry.kind == "exception":
        bases = [homes().get(id(base), "") or base.__name__ for base in entry.value.__bases__]
        shown_bases = ", ".join(
            f":py:obj:`{one.rpartition('.')[2]} <{one}>`" if "." in one else f"``{one}``" for one in bases
        )
        lines += [f"{inner}Base class: {shown_bases}", ""]
    lines += [f"{inner}{line}" if line else "" for line in body]
    for member in entry.members:
        if member.kind == "value" or member.text or member.kind == "attribute":
            lines += draw(member, inner)
    return [*lines, ""]


def exception_attributes(entry: Entry) -> tuple[str, ...]:
    """Return the names that the docstring of a class may define as attributes: those of its lines ``name: text``."""
    if entry.kind not in ("exception", "class"):
        return ()
    found = re.findall(r"^(\w+(?:, \w+)*):\s", entry.text, re.MULTILINE)
    return tuple(name for group in found for name in group.split(", ") if name not in ("Raises", "Returns"))


def gaps() -> list[str]:
    """Return what is missing in the reference, one line each."""
    return sorted({line for module in MODULES for entry in entries(module) for line in entry.lacks()})


if __name__ == "__main__":
    print("\n".join(gaps()))
