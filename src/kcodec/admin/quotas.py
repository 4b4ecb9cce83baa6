# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: client quotas (KIP-546). KIP-612 added the quotas of IP addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from numbers import Real
from typing import Any, Final

from kcodec.arguments import items_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, ItemResult, request_items, results, whole
from kcodec.cluster.retry_routes import AnyBroker, Controller
from kcodec.flow import Flow
from kcodec.protocol import messages

#: For each attribute of an entity, its name in the protocol (Kafka: ClientQuotaEntity).
_TYPES: Final = {"user": "user", "client_id": "client-id", "ip": "ip"}
_EXACT, _DEFAULT, _ANY = 0, 1, 2


class AnyName(Enum):
    """The type of ANY_NAME, which selects all names and the default."""

    ANY_NAME = "any name"


ANY_NAME: Final = AnyName.ANY_NAME


@dataclass(frozen=True)
class ClientQuotaEntity:
    """The clients to which quotas apply. "" is the default entity, for all clients that have no quotas by name.

    user: Name of a user; None if the quotas do not depend on the user.
    client_id: Value of `client_id`; None if the quotas do not depend on it.
    ip: Address of clients, only for connection_creation_rate; None if the quotas do not depend on it.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __str__(self) -> str:
        parts = ((name, getattr(self, name)) for name in _TYPES)
        return ", ".join(
            f"{name} {value!r}" if value else f"default {name}" for name, value in parts if value is not None
        )


def describe_client_quotas(
    context: CallContext,
    *,
    user: str | AnyName | None = None,
    client_id: str | AnyName | None = None,
    ip: str | AnyName | None = None,
    strict: bool = False,
    timeout: float | None = None,
) -> Flow[dict[ClientQuotaEntity, dict[str, float]]]:
    """Return quotas by entity and name, such as {"consumer_byte_rate": 1048576.0}. Without arguments, return all
    quotas.

    user, client_id, ip: Name that an entity must have. "" selects the default entity. ANY_NAME selects all names and
        the default. None: entities are not selected by this type.
    strict: Whether to skip entities that also have a type which is not selected.

    Raise AuthorizationError without DESCRIBE_CONFIGS on the cluster, or another BrokerError.
    """
    chosen = {"user": user, "client_id": client_id, "ip": ip}
    components = [_component(_TYPES[name], value) for name, value in chosen.items() if value is not None]
    handler: ApiHandler[str, dict[ClientQuotaEntity, dict[str, float]]] = ApiHandler(
        "describe client quotas of",
        AnyBroker(),
        lambda items, until: messages.DescribeClientQuotasRequest(components=components, strict=strict),
        lambda response, items: whole(response, items, _described),
        named=str,
    )
    return (yield from results(context, ["the cluster"], handler, timeout))["the cluster"]


def _component(kind: str, value: str | AnyName) -> Any:
    if isinstance(value, AnyName):
        return messages.QuotaFilterComponent(entity_type=kind, match_type=_ANY, match=None)
    return messages.QuotaFilterComponent(
        entity_type=kind, match_type=_EXACT if value else _DEFAULT, match=value or None
    )


def _described(response: Any) -> dict[ClientQuotaEntity, dict[str, float]]:
    return {_entity(one.entity): {value.key: value.value for value in one.values} for one in response.entries or ()}


def _entity(parts: Any) -> ClientQuotaEntity:
    names = {part.entity_type: part.entity_name or "" for part in parts}
    return ClientQuotaEntity(**{name: names[kind] for name, kind in _TYPES.items() if kind in names})


def alter_client_quotas(
    context: CallContext,
    changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> Flow[dict[ClientQuotaEntity, None]]:
    """Change individual quotas and keep the others.

    changes: For each entity, a mapping of names to values. None removes a quota. The names are producer_byte_rate and
        consumer_byte_rate (bytes per second on each broker), request_percentage, controller_mutation_rate, and, for an
        `ip`, connection_creation_rate.
    validate_only: Whether to check the request without a change.

    Raise ValueError if an entity has none of user, client_id and ip, or if a value is not finite. Raise TypeError if
    `changes` has another form, or if a value is not a number. Raise AuthorizationError without ALTER_CONFIGS on the
    cluster. Raise BrokerError (INVALID_REQUEST) if the broker rejects a quota. For several entities, an AdminError
    contains the errors.
    """
    _check(changes)
    handler: ApiHandler[ClientQuotaEntity, None] = ApiHandler(
        "alter quotas of",
        Controller(context.cluster),
        lambda some, until: messages.AlterClientQuotasRequest(
            entries=[_altered(entity, changes[entity]) for entity in some], validate_only=validate_only
        ),
        _results,
    )
    outcome = yield from request_items(context, changes, handler, context.deadline(timeout))
    outcome.doing = "alter client quotas"
    return outcome.value()


def _check(changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]]) -> None:
    for entity in items_of(changes, ClientQuotaEntity, "changes"):
        if entity == ClientQuotaEntity():
            raise ValueError("changes: an entity needs at least one of user, client_id and ip; '' is the default")
        if not isinstance(changes, Mapping) or not isinstance(changes[entity], Mapping):
            raise TypeError(f"changes: expected {{ClientQuotaEntity(...): {{name: value}}}}, got {changes!r}")
        given: Mapping[str, Any] = changes[entity]
        for name, value in given.items():
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"changes: {name} of {entity} must be a number or None, got {value!r}")
            if not isfinite(value):  # brokers before Kafka 4.4 accept NaN
                raise ValueError(f"changes: {name} of {entity} must be a finite number, got {value}")


def _altered(entity: ClientQuotaEntity, changes: Mapping[str, float | None]) -> Any:
    parts = ((kind, getattr(entity, name)) for name, kind in _TYPES.items())
    return messages.AlteredQuotaEntity(
        entity=[
            messages.QuotaEntityPart(entity_type=kind, entity_name=name or None)
            for kind, name in parts
            if name is not None
        ],
        ops=[
            messages.QuotaChange(key=name, value=0.0 if value is None else float(value), remove=value is None)
            for name, value in changes.items()
        ],
    )


def _results(response: Any, entities: list[ClientQuotaEntity]) -> Iterator[tuple[ClientQuotaEntity, ItemResult]]:
    for result in response.entries:
        yield _entity(result.entity), ItemResult(result.error_code, None, result.error_message)
