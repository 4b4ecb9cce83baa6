# SPDX-License-Identifier: Apache-2.0
"""Names of Java classes in properties, and their counterparts in kcodec: serializers, assignors, partitioners."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any


def _encode_text(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _packed(form: str) -> Callable[[Any], bytes | None]:
    def pack(number: Any) -> bytes | None:
        return None if number is None else struct.pack(form, number)

    return pack


def _unpacked(form: str) -> Callable[[bytes], Any]:
    def unpack(data: bytes) -> Any:
        return struct.unpack(form, data)[0]

    return unpack


#: Formats of the serializers in org.apache.kafka.common.serialization, by the beginning of the class name.
_NUMBERS = {"Short": ">h", "Integer": ">i", "Long": ">q", "Float": ">f", "Double": ">d"}
SERIALIZERS: dict[str, Any] = {
    "ByteArraySerializer": None,
    "StringSerializer": _encode_text,
    **{f"{name}Serializer": _packed(form) for name, form in _NUMBERS.items()},
}
DESERIALIZERS: dict[str, Any] = {
    "ByteArrayDeserializer": None,
    "StringDeserializer": bytes.decode,
    **{f"{name}Deserializer": _unpacked(form) for name, form in _NUMBERS.items()},
}
ASSIGNORS = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
PARTITIONERS = {"DefaultPartitioner": "murmur2_random", "UniformStickyPartitioner": "random"}
#: For each option, the package of the classes that its value may name, and the counterpart of each class.
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "key_serializer": ("org.apache.kafka.common.serialization.", SERIALIZERS),
    "value_serializer": ("org.apache.kafka.common.serialization.", SERIALIZERS),
    "key_deserializer": ("org.apache.kafka.common.serialization.", DESERIALIZERS),
    "value_deserializer": ("org.apache.kafka.common.serialization.", DESERIALIZERS),
    "partition_assignment_strategy": ("org.apache.kafka.clients.consumer.", ASSIGNORS),
    "partitioner": ("org.apache.kafka.clients.producer.", PARTITIONERS),
}


def of_classes(property_name: str, option: str, value: str) -> Any:
    """Return the value of an option for a text that names Java classes, or kcodec's own assignors or partitioners.
    Raise ValueError if a class is unknown."""
    package, classes = CLASSES[option]
    if option == "partition_assignment_strategy":
        return tuple(_of_class(property_name, name.strip(), package, classes) for name in value.split(","))
    if option == "partitioner" and "." not in value:
        return value
    return _of_class(property_name, value, package, classes)


def _of_class(property_name: str, value: str, package: str, classes: dict[str, Any]) -> Any:
    name = value.removeprefix(package)
    if name in classes:
        return classes[name]
    if "." not in value and classes is ASSIGNORS:
        return value
    raise ValueError(
        f"{property_name} names the class {value}, which kcodec does not have; expected one of "
        f"{', '.join(package + known for known in classes)}, or pass a Python function or object as an option"
    )
