# SPDX-License-Identifier: Apache-2.0
"""Kafka's messages: one class for each, for all versions that Kafka 2.5 to 4.4 supports on either side.

    from kcodec.protocol import messages
    messages.ProduceRequest(acks=-1, ...).encode(version=9) -> bytes
    messages.ProduceRequest.decode(data, version=9)

The tables were drafted from the definitions inside Kafka's jars (tools/draft_messages.py) and are compared with them,
field by field and version by version (tools/check_messages.py). Names are Kafka's. Structs that have the same name in
several messages and differ there begin with the message's name. A module is imported when one of its names is used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from kcodec.protocol.schema import NO_VERSIONS, Message, Request, Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.protocol.messages.acls import *
    from kcodec.protocol.messages.auth import *
    from kcodec.protocol.messages.cluster import *
    from kcodec.protocol.messages.config_resources import *
    from kcodec.protocol.messages.configs import *
    from kcodec.protocol.messages.consumer_protocol import *
    from kcodec.protocol.messages.control_records import *
    from kcodec.protocol.messages.delegation_tokens import *
    from kcodec.protocol.messages.fetch import *
    from kcodec.protocol.messages.group_records import *
    from kcodec.protocol.messages.group_types import *
    from kcodec.protocol.messages.groups import *
    from kcodec.protocol.messages.log_dirs import *
    from kcodec.protocol.messages.metadata import *
    from kcodec.protocol.messages.metadata_records import *
    from kcodec.protocol.messages.offsets import *
    from kcodec.protocol.messages.produce import *
    from kcodec.protocol.messages.quorum import *
    from kcodec.protocol.messages.quotas import *
    from kcodec.protocol.messages.records import *
    from kcodec.protocol.messages.share_groups import *
    from kcodec.protocol.messages.share_offsets import *
    from kcodec.protocol.messages.share_records import *
    from kcodec.protocol.messages.streams_groups import *
    from kcodec.protocol.messages.streams_records import *
    from kcodec.protocol.messages.telemetry import *
    from kcodec.protocol.messages.topics import *
    from kcodec.protocol.messages.transactions import *

# What a producer exchanges with brokers; what kcodec's clients exchange with brokers and with other members of a group;
# what only other clients exchange; and what only logs hold. In the order in which they are searched.
_CORE = ("produce", "transactions", "metadata", "auth")
_EXCHANGED = (
    *_CORE,
    *("fetch", "offsets", "groups", "topics", "configs", "cluster"),
    *("acls", "consumer_protocol", "group_types", "quotas", "quorum", "config_resources", "delegation_tokens"),
    *("share_offsets", "log_dirs"),
)
_MODULES = (
    *_EXCHANGED,
    *("share_groups", "streams_groups", "telemetry"),
    *("records", "group_records", "share_records", "streams_records", "metadata_records", "control_records"),
)


@cache
def _classes(module: str) -> dict[str, type[Struct]]:
    """Return the classes that a module declares."""
    home = f"{__name__}.{module}"
    found = vars(import_module(home)).items()
    return {name: kind for name, kind in found if isinstance(kind, type) and kind.__module__ == home}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:  # `from ... import produce` calls this before it looks for a module
            return import_module(f"{__name__}.{name}")
        if not name.startswith("_"):
            for module in _MODULES:
                if name in _classes(module):
                    return globals().setdefault(name, _classes(module)[name])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *(name for module in _MODULES for name in _classes(module))]


def load_core() -> None:
    """Import the messages of a producer, which flows of all clients use where they need them. The modules of consumers
    import theirs."""
    for module in _CORE:
        import_module(f"{__name__}.{module}")


def load_exchanged() -> None:
    """Import the messages that kcodec's clients exchange, without those that only other clients or logs have."""
    for module in _EXCHANGED:
        import_module(f"{__name__}.{module}")


@cache
def all_messages() -> tuple[type[Message], ...]:
    """Return every message: requests, responses, and keys and values of records. Base classes have no versions."""
    classes = [kind for module in _MODULES for kind in _classes(module).values()]
    return tuple(kind for kind in classes if issubclass(kind, Message) and kind.versions != NO_VERSIONS)


@cache
def all_requests() -> dict[int, type[Request]]:
    """Return the class of every request by its api key; each has its `response`."""
    requests = [kind for kind in all_messages() if issubclass(kind, Request)]
    return {request.api_key: request for request in sorted(requests, key=lambda request: request.api_key)}
