# SPDX-License-Identifier: Apache-2.0
"""Draft the class table of a message from Kafka's definition of it; a person writes the docstrings and chooses names.

Usage: python tools/draft_messages.py NAME... [--highest VERSION]    (python tools/draft_messages.py ProduceRequest)

Fields and versions of two releases are put together: what the newest has comes from it, what it dropped from 3.9.1. The
draft goes to standard output; `tools/check_messages.py` says whether a table still is what Kafka says.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from message_definitions import (
    NEW_JARS,
    OLD_JARS,
    Json,
    Versions,
    definitions,
    element,
    field_versions,
    inner_fields,
    plain_default,
    python_type,
    snake_case,
    stable_versions,
)

KIND_NAMES = {"bool": "boolean", "bytes": "data"}
# The base class of a message by the type of its definition; a definition of another type has no api key.
BASES = {
    "request": "Request",
    "response": "Response",
    "coordinator-key": "CoordinatorKey",
    "coordinator-value": "CoordinatorValue",
    "metadata": "MetadataRecord",
}


class Source(NamedTuple):
    """A message in both releases. new, old: its definitions, None if a release does not have it; versions: the versions
    of the table."""

    new: Json | None
    old: Json | None
    versions: Versions

    def releases(self, version: int) -> Json | None:
        """Return the definition that applies to a version."""
        for definition in (self.new, self.old):
            if definition is not None and version in Versions.of(definition["validVersions"]):
                return definition
        return None


class Pair(NamedTuple):
    """A field in both releases, one of which may not have it."""

    new: Json | None
    old: Json | None

    @property
    def either(self) -> Json:
        """Return the newer field, or the older one if there is no newer one."""
        return self.new or self.old or {}


def paired(new: Iterable[Json], old: Iterable[Json]) -> Iterator[Pair]:
    """Yield the fields of both releases, paired by name, in the order of the newer one. A field of the older one only
    keeps its position after its predecessor."""
    waiting = {field["name"]: field for field in old}
    newer = list(new)
    names = {field["name"] for field in newer}
    for field in newer:
        for name in list(waiting):
            if name in names:
                break
            yield Pair(None, waiting.pop(name))
        yield Pair(field, waiting.pop(field["name"], None))
    yield from (Pair(None, field) for field in waiting.values())


class Draft:
    """Writes the classes of one message. A struct comes before the classes that contain it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.classes: dict[str, list[str]] = {}

    def spelt(self, pair: Pair, key: str = "") -> str:
        """Return the versions that have a field or, with a key such as "nullableVersions", in which it also has that
        property."""
        numbers = []
        for version in self.source.versions.numbers():
            decides = self.source.releases(version)
            field = pair.new if decides is self.source.new else pair.old
            if field is None or version not in Versions.of(field_versions(field)):
                continue
            if not key or version in Versions.of(field.get(key, "none")):
                numbers.append(version)
        if not numbers:
            return "none"
        first, last = numbers[0], numbers[-1]
        if last == self.source.versions.last:
            return f"{first}+"
        return str(first) if first == last else f"{first}-{last}"

    def field(self, pair: Pair) -> str | None:
        """Return the line of a field, or None if no version has it."""
        field, versions = pair.either, self.spelt(pair)
        if versions == "none":
            return None
        kind, is_array = element(field["type"])
        inside = [inner_fields(found, field) for found, field in self._known(pair)]
        is_struct = any(inside)
        if is_struct and kind not in self.classes:
            self.struct(kind, list(paired(inside[0], inside[-1] if len(inside) > 1 else ())))
        arguments = [f'"{versions}"']
        nullable = self.spelt(pair, "nullableVersions")
        python = python_type(kind, is_array, nullable != "none")
        tagged = self.spelt(pair, "taggedVersions")
        default = plain_default(field, "struct" if is_struct else kind, is_array)
        if nullable != "none":
            arguments.append(f'nullable="{nullable}"')
        if default not in (0, False, "", b"", "struct", []) and kind != "records":
            arguments.append(f"default={default!r}" if not isinstance(default, str) else f'default="{default}"')
        if tagged != "none":
            arguments.append(f"tag={field['tag']}" + (f', tagged="{tagged}"' if tagged != versions else ""))
        if field.get("ignorable"):
            arguments.append("ignorable=True")
        wire = KIND_NAMES.get(kind, kind)
        if is_array:
            wire, arguments = "array", [wire, *arguments]
        elif is_struct:
            wire, arguments = "struct", [wire, *arguments]
        return f"    {snake_case(field['name'])}: {python} = {wire}({', '.join(arguments)})"

    def _known(self, pair: Pair) -> Iterator[tuple[Json, Json]]:
        for definition, field in ((self.source.new, pair.new), (self.source.old, pair.old)):
            if definition is not None and field is not None:
                yield definition, field

    def struct(self, name: str, pairs: list[Pair]) -> None:
        """Add the class of a struct. The classes of its fields come before it."""
        lines = [line for pair in pairs if (line := self.field(pair)) is not None]
        self.classes[name] = [f"class {name}(Struct):", *lines]

    def message(self, name: str) -> None:
        """Add the class of the message itself."""
        definition = self.source.new or self.source.old or {}
        new = self.source.new["fields"] if self.source.new else ()
        old = self.source.old["fields"] if self.source.old else ()
        lines = [line for pair in paired(new, old) if (line := self.field(pair)) is not None]
        base = BASES.get(definition["type"], "Message")
        options = [f"key={definition['apiKey']}"] if base != "Message" else []
        first, last = self.source.versions
        options += [f'versions="{first}-{last}"' if first != last else f'versions="{first}"']
        options += [f'flexible="{definition["flexibleVersions"]}"']
        self.classes[name] = [f"class {name}({base}, {', '.join(options)}):", *lines]


def source(name: str, highest: int | None = None) -> Source:
    """Return a message of both releases, up to its highest stable version or `highest`."""
    new, old = definitions(NEW_JARS).get(name), definitions(OLD_JARS).get(name)
    if new is None and old is None:
        raise SystemExit(f"neither release has a message {name}")
    first, last = stable_versions(new, old)
    return Source(new, old, Versions(first, last if highest is None else highest))


def drafted(name: str, highest: int | None = None, docstring: Callable[[str], str] = lambda name: "...") -> str:
    """Return the classes of a message as text."""
    draft = Draft(source(name, highest))
    draft.message(name)
    blocks = []
    for struct, (head, *fields) in draft.classes.items():
        blocks.append("\n".join([head, f'    """{docstring(struct)}"""', *(["", *fields] if fields else [])]))
    return "\n\n\n".join(blocks) + "\n"


def main() -> None:
    """Print the drafts of the requested messages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--highest", type=int, help="leave out versions above this one")
    arguments = parser.parse_args()
    print("\n\n".join(drafted(name, arguments.highest) for name in arguments.names), end="")


if __name__ == "__main__":
    main()
