# SPDX-License-Identifier: Apache-2.0
"""Compare the class tables of kcodec.protocol.messages with Kafka's definitions, field by field, version by version.

Usage: python tools/check_messages.py [--quiet]

Messages and versions are compared with the newest Kafka, those that it has dropped with 3.9.1, and those in both with
both. Compared are the type of the message (request, response, key or value of a record), versions, API keys and
flexible versions, and for each field its presence, order, type, nullability, tag, default, whether it is ignorable, and
its Python type in the table. Records of internal topics are compared only with the newest Kafka, because the
coordinators of 3.9.1 use other numbers for their keys. Each difference is printed in one line, and the exit code is
then 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any
from uuid import UUID

from message_definitions import (
    NEW_JARS,
    NEW_RELEASE,
    OLD_JARS,
    OLD_RELEASE,
    Json,
    Present,
    Versions,
    definitions,
    missing_jars,
    present,
    python_type,
    stable_versions,
)

from kcodec.protocol import messages
from kcodec.protocol.schema import (
    CoordinatorKey,
    CoordinatorValue,
    Field,
    Message,
    MetadataRecord,
    Request,
    Response,
    Struct,
    fields,
)

# Records that are read by the class of a later record, which has the same fields.
READ_AS = {"LegacyOffsetCommitKey": "OffsetCommitKey", "LegacyOffsetCommitValue": "OffsetCommitValue"}
# The type of a definition by the base class of its message. A message of another class has a definition of type "data".
TYPES: dict[type[Message], str] = {
    Request: "request",
    Response: "response",
    CoordinatorKey: "coordinator-key",
    CoordinatorValue: "coordinator-value",
    MetadataRecord: "metadata",
}
RECORD_TYPES = {TYPES[CoordinatorKey], TYPES[CoordinatorValue], TYPES[MetadataRecord]}
# Fields with another name in the older release: (message, name there) -> name in the newest.
RENAMED = {("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch"}
# Properties of fields that do not affect the bytes of a message. They are compared with the newer release only.
OF_VALUES = {"default", "ignorable"}


def shown_default(field: Field) -> Any:
    """Return the default of a field of a table in the form of `Present`."""
    if field.default is None or field.is_array:
        return field.default
    if not isinstance(field.kind, str):
        return "struct" if field.default == field.kind() else field.default
    if isinstance(field.default, UUID):
        return "" if field.default == UUID(int=0) else str(field.default)
    return field.default


def declared(kind: type[Struct], version: int, path: str = "") -> Iterator[Present]:
    """Yield every field that a table has in a version, in the terms of Kafka's definitions."""
    for name, field in fields(kind).items():
        if not field.versions.hold(version):
            continue
        is_struct = not isinstance(field.kind, str)
        yield Present(
            path + name,
            "struct" if is_struct else str(field.kind),
            field.is_array,
            field.nullable.hold(version),
            field.tag if field.tagged.hold(version) else None,
            None if field.flexible is None else field.flexible.hold(version),
            shown_default(field),
            field.ignorable,
        )
        if not isinstance(field.kind, str):
            yield from declared(field.kind, version, f"{path}{name}.")


def field_differences(ours: Present, theirs: Present, ignored: set[str]) -> Iterator[str]:
    """Yield the differences of one field."""
    for name, our, their in zip(Present._fields, ours, theirs, strict=True):
        if our != their and name not in ignored:
            yield f"{ours.path}: {name} is {our!r}, Kafka has {their!r}"


def version_differences(ours: Iterable[Present], theirs: Iterable[Present], only_wire: set[str]) -> Iterator[str]:
    """Yield the differences of the fields of one version. For fields in `only_wire` only their bytes are compared."""
    our, their = {field.path: field for field in ours}, {field.path: field for field in theirs}
    yield from (f"{path} is missing" for path in their if path not in our)
    yield from (f"{path} is not in Kafka" for path in our if path not in their)
    if our.keys() == their.keys():
        for mine, other in zip_longest(our, their):
            if mine != other:
                yield f"{mine} stands where Kafka has {other}"
                return
    for path in our.keys() & their.keys():
        yield from field_differences(our[path], their[path], OF_VALUES if path in only_wire else set())


def paths(definition: Json) -> set[str]:
    """Return the paths of all fields that a definition has in any version."""
    return {
        field.path
        for version in Versions.of(definition["validVersions"]).numbers()
        for field in present(definition, version)
    }


def annotation_differences(kind: type[Struct], seen: set[type[Struct]]) -> Iterator[str]:
    """Yield the fields whose annotation in a class differs from the Python type of the field."""
    if kind in seen:
        return
    seen.add(kind)
    annotations: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        annotations |= getattr(base, "__annotations__", {})
    for name, field in fields(kind).items():
        shown = annotations.get(name)
        inner = field.kind if isinstance(field.kind, str) else field.kind.__name__
        expected = python_type(inner, field.is_array, field.nullable.first <= field.nullable.last)
        if shown != expected:
            yield f"{kind.__name__}.{name} is annotated {shown}, its field is {expected}"
        if not isinstance(field.kind, str):
            yield from annotation_differences(field.kind, seen)


def message_differences(kind: type[Message], new: Json | None, old: Json | None) -> Iterator[str]:
    """Yield the differences of one message from its definitions in both releases, one of which may be missing."""
    known = [definition for definition in (new, old) if definition is not None]
    if not known:
        yield "neither release has it"
        return
    if tuple(kind.versions) != tuple(stable_versions(new, old)):
        yield f"versions are {kind.versions}, Kafka has {stable_versions(new, old)}"
    ours = next((name for base, name in TYPES.items() if issubclass(kind, base)), "data")
    if ours != known[0]["type"]:
        yield f"the type is {ours}, Kafka has {known[0]['type']}"
    key = getattr(kind, "api_key", None)
    if key != known[0].get("apiKey"):
        yield f"the api key is {key}, Kafka has {known[0].get('apiKey')}"
    newer = paths(new) if new is not None else set()
    for release, definition in ((NEW_RELEASE, new), (OLD_RELEASE, old)):
        if definition is None:
            continue
        valid, flexible = Versions.of(definition["validVersions"]), Versions.of(definition["flexibleVersions"])
        for version in range(kind.versions.first, kind.versions.last + 1):
            if version not in valid:
                continue
            where = f"version {version} ({release}): "
            if kind.is_flexible(version) != (version in flexible):
                yield f"{where}flexible is {kind.is_flexible(version)}, Kafka has {version in flexible}"
            only_wire = newer if release == OLD_RELEASE else set()
            named = renamed(definition["name"], present(definition, version))
            found = version_differences(declared(kind, version), named, only_wire)
            yield from (where + difference for difference in found)


def renamed(message: str, theirs: Iterable[Present]) -> Iterator[Present]:
    """Yield the fields of a release with their names in the newest release."""
    for field in theirs:
        yield field._replace(path=RENAMED.get((message, field.path), field.path))


def record_differences() -> Iterator[str]:
    """Yield definitions of records in the newest release that have no class, and differences of those that another
    class reads."""
    declared_kinds = {kind.__name__: kind for kind in messages.all_messages()}
    for name, definition in definitions(NEW_JARS).items():
        if definition["type"] not in RECORD_TYPES:
            continue
        kind = declared_kinds.get(READ_AS.get(name, name))
        if kind is None:
            yield f"{name}: no class is declared"
        elif name in READ_AS:
            for version in Versions.of(definition["validVersions"]).numbers():
                found = version_differences(declared(kind, version), present(definition, version), set())
                yield from (f"{kind.__name__} as {name}: version {version}: {difference}" for difference in found)


def differences(kinds: Iterable[type[Message]] | None = None) -> list[str]:
    """Return every difference of these messages, or of all messages, one line each."""
    seen: set[type[Struct]] = set()
    found = list(record_differences()) if kinds is None else []
    for kind in messages.all_messages() if kinds is None else kinds:
        name = kind.__name__
        of_kafka = message_differences(kind, definitions(NEW_JARS).get(name), definitions(OLD_JARS).get(name))
        found += [f"{name}: {difference}" for difference in of_kafka]
        found += list(annotation_differences(kind, seen))
    return found


def main() -> None:
    """Print the differences. Exit with code 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quiet", action="store_true", help="say nothing when all is well")
    arguments = parser.parse_args()
    missing = missing_jars()
    if missing:
        sys.exit(f"{missing[0]} is not there: run `make jars`")
    found = differences()
    for line in found:
        print(line)
    if found:
        sys.exit(1)
    if not arguments.quiet:
        kinds = messages.all_messages()
        count = sum(kind.versions.last - kind.versions.first + 1 for kind in kinds)
        print(f"{len(kinds)} messages, {count} versions: as Kafka {NEW_RELEASE} and {OLD_RELEASE} define them")


if __name__ == "__main__":
    main()
