# SPDX-License-Identifier: Apache-2.0
"""Conversion of ACLs and SCRAM credentials of confluent_kafka to values of kcodec, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka import admin as _admin

from kcodec.admin.security import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
    ScramCredentialDeletion,
    ScramCredentialInfo,
    ScramCredentialUpsertion,
    ScramMechanism,
)
from kcodec.compat._confluent_errors import local_error

# The stubs of confluent_kafka do not export all of the names.
admin: Any = _admin
#: librdkafka has its own numbers for the types of resources. The other enumerations have Kafka's numbers.
RESOURCES = {
    admin.ResourceType.UNKNOWN: ResourceType.UNKNOWN,
    admin.ResourceType.ANY: ResourceType.ANY,
    admin.ResourceType.TOPIC: ResourceType.TOPIC,
    admin.ResourceType.GROUP: ResourceType.GROUP,
    admin.ResourceType.BROKER: ResourceType.CLUSTER,
    admin.ResourceType.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
CONFLUENT_RESOURCES = {ours: one for one, ours in RESOURCES.items()}


def _fields(binding: Any) -> tuple[Any, ...]:
    """Return the fields of an AclBinding or an AclBindingFilter, in the order of AclBinding and AclFilter."""
    return (
        RESOURCES[binding.restype],
        binding.name,
        binding.principal,
        AclOperation(binding.operation.value),
        AclPermission(binding.permission_type.value),
        binding.host,
        PatternType(binding.resource_pattern_type.value),
    )


def acl_of(binding: Any) -> AclBinding:
    """Return the permission of an AclBinding of confluent_kafka."""
    return AclBinding(*_fields(binding))


def acl_filter_of(binding: Any) -> AclFilter:
    """Return the filter of an AclBindingFilter of confluent_kafka."""
    return AclFilter(*_fields(binding))


def confluent_acls(found: Iterable[AclBinding] | KafkaError) -> Any:
    """Return AclBindings of confluent_kafka, or the error."""
    return found if isinstance(found, KafkaError) else [_confluent_acl(one) for one in found]


def _confluent_acl(one: AclBinding) -> Any:
    return admin.AclBinding(
        CONFLUENT_RESOURCES.get(one.resource_type, admin.ResourceType.UNKNOWN),
        one.resource_name,
        admin.ResourcePatternType(int(one.pattern_type)),
        one.principal,
        one.host,
        admin.AclOperation(int(one.operation)),
        admin.AclPermissionType(int(one.permission)),
    )


def alteration_of(one: Any) -> ScramCredentialUpsertion | ScramCredentialDeletion:
    """Return the change of SCRAM credentials. The salt is always random.

    Raise KafkaException if the password is not text.
    """
    if isinstance(one, admin.UserScramCredentialDeletion):
        return ScramCredentialDeletion(one.user, ScramMechanism(one.mechanism.value))
    info = one.scram_credential_info
    try:
        password = one.password.decode()
    except UnicodeDecodeError:
        raise local_error(KafkaError._INVALID_ARG, f"the password of {one.user!r} is not UTF-8") from None
    return ScramCredentialUpsertion(one.user, password, ScramMechanism(info.mechanism.value), info.iterations)


def confluent_credentials(user: str, found: tuple[ScramCredentialInfo, ...]) -> Any:
    """Return the description of the SCRAM credentials of a user, or the error RESOURCE_NOT_FOUND if the user has
    none."""
    if not found:
        return KafkaError(KafkaError.RESOURCE_NOT_FOUND, f"user {user!r} has no SCRAM credentials")
    infos = [admin.ScramCredentialInfo(admin.ScramMechanism(int(one.mechanism)), one.iterations) for one in found]
    return admin.UserScramCredentialsDescription(user, infos)
