# SPDX-License-Identifier: Apache-2.0
"""confluent_kafka's clients on kcodec, with the same methods, configuration names, errors and callbacks.

    from kcodec.compat.confluent import Consumer, Producer       # instead of: from confluent_kafka import ...

    import kcodec.compat.confluent
    kcodec.compat.confluent.install()        # for a program or framework that imports confluent_kafka itself
    kcodec.compat.confluent.uninstall()

Messages, errors, TopicPartition, serializers and Schema Registry clients are those of confluent_kafka, which must be
installed: `pip install confluent-kafka`. Public names of `confluent_kafka` and `confluent_kafka.admin`, such as
TopicPartition and NewTopic, can also be imported from this module. librdkafka opens no connection.
docs/compat-confluent.md lists what is covered.
"""

from __future__ import annotations

import threading
from typing import Any

from kcodec.compat._other_client import client_module, value_of
from kcodec.compat._patches import Patches, compiled_class, moved_wrappers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.compat._confluent_admin import AdminClient
    from kcodec.compat._confluent_consumer import ConfluentConsumer as Consumer
    from kcodec.compat._confluent_consumer import DeserializingConsumer
    from kcodec.compat._confluent_producer import ConfluentProducer as Producer
    from kcodec.compat._confluent_producer import SerializingProducer

__all__ = [
    "AdminClient",
    "Consumer",
    "DeserializingConsumer",
    "Producer",
    "SerializingProducer",
    "install",
    "installed",
    "uninstall",
]

KNOWN = "2.16.1"
# For each public name, the module and the name there.
_CLASSES = {
    "AdminClient": ("_confluent_admin", "AdminClient"),
    "Consumer": ("_confluent_consumer", "ConfluentConsumer"),
    "DeserializingConsumer": ("_confluent_consumer", "DeserializingConsumer"),
    "Producer": ("_confluent_producer", "ConfluentProducer"),
    "SerializingProducer": ("_confluent_producer", "SerializingProducer"),
}
# The modules whose values can be imported from here, and their clients, which would use librdkafka.
_MODULES = ("confluent_kafka", "confluent_kafka.admin")
_CLIENTS = frozenset({"ShareConsumer", "DeserializingShareConsumer"})
_patches = Patches("confluent_kafka")
_lock = threading.Lock()
# The classes whose bases were replaced, and their former bases.
_bases: list[tuple[Any, tuple[type, ...]]] = []


def __getattr__(name: str) -> Any:
    """Return one of the clients, or a value of confluent_kafka. The first call imports confluent_kafka."""
    if name not in _CLASSES:
        return value_of(name, _MODULES, "confluent-kafka", _CLIENTS, __name__)
    _check_version()
    import importlib

    module, own = _CLASSES[name]
    return getattr(importlib.import_module(f"kcodec.compat.{module}"), own)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__


def install() -> None:
    """Replace the clients of confluent_kafka by those of kcodec, in all of its modules and in modules that import them
    later.

    Call this before a program imports names of confluent_kafka. A second call has no effect. Raise ImportError if
    confluent-kafka is not installed, or if its version is not supported.
    """
    with _lock:
        _patches.install(_prepare)
        if not _bases:
            _replace_bases()


def uninstall() -> None:
    """Restore confluent_kafka's own clients. Clients that were created before are still clients of kcodec."""
    with _lock:
        while _bases:
            owner, former = _bases.pop()
            owner.__bases__ = former
        _patches.uninstall()


def installed() -> bool:
    """Return whether install() is in effect."""
    return _patches.installed


def _check_version() -> Any:
    package = client_module("confluent_kafka", "confluent-kafka")
    found = str(package.__version__)
    missing = [name for name in ("Producer", "Consumer", "Message", "ThrottleEvent") if not hasattr(package, name)]
    if missing or tuple(map(int, found.split(".")[:2])) < (2, 11):
        raise ImportError(
            f"confluent-kafka {found} is not supported by kcodec.compat, which is made for {KNOWN}; "
            f"pip install 'confluent-kafka=={KNOWN}'"
        )
    return package


def _prepare() -> tuple[dict[str, object], dict[str, object], list[tuple[object, str, object]]]:
    package = _check_version()
    from kcodec.compat._confluent_consumer import ConfluentConsumer
    from kcodec.compat._confluent_producer import ConfluentProducer

    ours = {"Consumer": ConfluentConsumer, "Producer": ConfluentProducer}
    originals: dict[str, object] = {}
    attributes: list[tuple[object, str, object]] = []
    for name, facade in ours.items():
        found = getattr(package, name)
        originals[name] = compiled = compiled_class(found, "cimpl")
        methods = {**vars(facade.__mro__[1]), **vars(facade)}
        attributes += moved_wrappers(found, "confluent_kafka", methods.get, compiled)
    return originals, dict(ours), attributes


def _replace_bases() -> None:
    """Make the Python classes of confluent_kafka derive from classes of kcodec instead of those of librdkafka. This
    includes classes that an instrumentation has put in the place of Consumer and Producer."""
    from confluent_kafka import Consumer, DeserializingConsumer, Producer, SerializingProducer, admin, cimpl

    from kcodec.compat._confluent_admin import AdminMethods
    from kcodec.compat._confluent_consumer import ConsumerMethods
    from kcodec.compat._confluent_producer import ProducerMethods

    replaced = (
        (AdminMethods, (admin.AdminClient,)),
        (ConsumerMethods, (DeserializingConsumer, Consumer, cimpl.Consumer)),
        (ProducerMethods, (SerializingProducer, Producer, cimpl.Producer)),
    )
    for methods, classes in replaced:
        for owner in dict.fromkeys(one for found in classes for one in found.__mro__ if not issubclass(one, methods)):
            former = owner.__bases__
            if methods.__base__ in former:
                owner.__bases__ = tuple(methods if one is methods.__base__ else one for one in former)
                _bases.append((owner, former))
