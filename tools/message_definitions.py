# SPDX-License-Identifier: Apache-2.0
"""Kafka's message definitions, which are JSON files in its jars, read for one version at a time.

Two releases are used: the newest one, and 3.9.1 for versions that 4.0 dropped (KIP-896). A definition has ranges of
versions in which each field exists, may be null, and is tagged. `present` returns the fields of one version, which the
drafting tool and the check use.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kcodec.testing.jars import TESTED_VERSIONS

ROOT = Path(__file__).resolve().parent.parent
NEW_RELEASE, OLD_RELEASE = TESTED_VERSIONS[0], TESTED_VERSIONS[-1]
NEW_JARS = tuple(
    ROOT / ".cache" / "kafka-libs" / f"kafka-{module}-{NEW_RELEASE}.jar"
    for module in ("clients", "group-coordinator", "transaction-coordinator", "share-coordinator", "metadata")
)
OLD_JARS = (ROOT / ".cache" / f"kafka-libs-{OLD_RELEASE}" / f"kafka-clients-{OLD_RELEASE}.jar",)

HIGHEST = 32767
Json = dict[str, Any]


class Versions(NamedTuple):
    """A range of versions, including both ends. If it is empty, `last` is below `first`."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.last > self.first else str(self.first)

    @classmethod
    def of(cls, text: str) -> Versions:
        """Return the range for a text in a definition: "0+", "1-3", "2", "none"."""
        if text == "none":
            return cls(0, -1)
        first, dash, last = text.rstrip("+").partition("-")
        return cls(int(first), HIGHEST if text.endswith("+") else int(last if dash else first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def numbers(self) -> range:
        """Return all versions of the range."""
        return range(self.first, self.last + 1)


@cache
def definitions(jars: tuple[Path, ...]) -> dict[str, Json]:
    """Return the definitions in some jars by name."""
    found: dict[str, Json] = {}
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            for path in archive.namelist():
                if path.startswith(("common/message/", "common/metadata/")) and path.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", archive.read(path).decode("utf-8"), flags=re.MULTILINE)
                    definition = json.loads(text)
                    found[definition["name"]] = definition
    return found


def snake_case(name: str) -> str:
    """Return kcodec's name of a field: IsrNodes -> isr_nodes, KRaftVersion -> kraft_version."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.replace("KRaft", "Kraft")).lower()


def element(kind: str) -> tuple[str, bool]:
    """Return a type without its "[]", and whether it had one."""
    return kind.removeprefix("[]"), kind.startswith("[]")


def inner_fields(definition: Json, field: Json) -> list[Json]:
    """Return the fields of a field's struct, which is defined inside the field or in the common structs; [] for a plain
    type."""
    if field.get("fields"):
        fields: list[Json] = field["fields"]
        return fields
    name = element(field["type"])[0]
    for struct in definition.get("commonStructs", ()):
        if struct["name"] == name:
            common: list[Json] = struct["fields"]
            return common
    return []


def field_versions(field: Json) -> str:
    """Return the versions of a field. A field that is always tagged may have only "taggedVersions"."""
    return str(field.get("versions", field.get("taggedVersions", "none")))


class Present(NamedTuple):
    """A field in one version. kind: Kafka's name of the type, "struct" for structs; tag: None if the field is not
    tagged.

    flexible: whether its length is a varint; None if this depends only on the version.
    """

    path: str
    kind: str
    is_array: bool
    nullable: bool
    tag: int | None
    flexible: bool | None
    default: Any
    ignorable: bool


def plain_default(field: Json, kind: str, is_array: bool) -> Any:
    """Return the default of a field as a Python value. Most defaults in definitions are strings."""
    written = field.get("default")
    if written == "null":
        return None
    if is_array:
        return []
    if kind == "bool":
        return str(written).lower() == "true"
    if kind == "float64":
        return float(written or 0)
    if re.fullmatch(r"u?int\d+", kind):
        return int(str(written or 0), 0)
    if kind == "records":
        return None
    return written or ("" if kind in ("string", "uuid") else b"" if kind == "bytes" else "struct")


def present(definition: Json, version: int, fields: list[Json] | None = None, path: str = "") -> Iterator[Present]:
    """Yield every field of a version, structs before their own fields."""
    for field in definition["fields"] if fields is None else fields:
        if version not in Versions.of(field_versions(field)):
            continue
        kind, is_array = element(field["type"])
        inside = inner_fields(definition, field)
        name = path + snake_case(field["name"])
        yield Present(
            name,
            "struct" if inside else kind,
            is_array,
            version in Versions.of(field.get("nullableVersions", "none")),
            int(field["tag"]) if version in Versions.of(field.get("taggedVersions", "none")) else None,
            version in Versions.of(field["flexibleVersions"]) if "flexibleVersions" in field else None,
            plain_default(field, "struct" if inside else kind, is_array),
            bool(field.get("ignorable", False)),
        )
        if inside:
            yield from present(definition, version, inside, name + ".")


PYTHON_TYPES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "uuid": "UUID",
    "records": "bytes | bytearray | memoryview",
    **dict.fromkeys(("int8", "int16", "uint16", "int32", "uint32", "int64"), "int"),
}


def python_type(kind: str, is_array: bool, is_nullable: bool) -> str:
    """Return the annotation of a field. kind: Kafka's name of the type, or the name of a struct's class."""
    name = PYTHON_TYPES.get(kind, kind)
    return (f"list[{name}]" if is_array else name) + (" | None" if is_nullable else "")


def stable_versions(new: Json | None, old: Json | None) -> Versions:
    """Return all versions of both releases without an unstable one of the newest, which only requests declare."""
    known = [definition for definition in (new, old) if definition is not None]
    ranges = [Versions.of(definition["validVersions"]) for definition in known]
    last = max(versions.last for versions in ranges)
    request = known[0]["name"].removesuffix("Response") + "Request" if known[0].get("type") == "response" else None
    asked = definitions(NEW_JARS).get(request, {}) if request else known[0]
    return Versions(min(versions.first for versions in ranges), last - (asked.get("latestVersionUnstable") is True))


def missing_jars() -> list[Path]:
    """Return the jars that are missing."""
    return [jar for jar in (*NEW_JARS, *OLD_JARS) if not jar.is_file()]
