# SPDX-License-Identifier: Apache-2.0
"""ACLs, and the table of all ACLs (Kafka: StandardAcl, AclCache). An ACL allows or denies a principal an operation on
resources.

The numbers are those of Kafka's ResourceType, PatternType, AclOperation and AclPermissionType.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple
from uuid import UUID

from kcodec.protocol import messages

#: The name of the resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"
ANY_PRINCIPAL = "User:*"


class ResourceType(IntEnum):
    """The type of a resource. ANY is only for filters."""

    UNKNOWN, ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER = range(8)


class PatternType(IntEnum):
    """How the name in an ACL selects resources. ANY and MATCH are only for filters."""

    UNKNOWN, ANY, MATCH, LITERAL, PREFIXED = range(5)


class Operation(IntEnum):
    """An operation on a resource. ANY is only for filters, and ALL is only for ACLs and filters."""

    UNKNOWN, ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(10)
    DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE, CREATE_TOKENS, DESCRIBE_TOKENS, TWO_PHASE_COMMIT = range(10, 16)


class Permission(IntEnum):
    """Whether an ACL allows or denies its operation. ANY is only for filters."""

    UNKNOWN, ANY, DENY, ALLOW = range(4)


#: Operation -> operations that include it: an ACL that allows one of them also allows the operation.
_INCLUDED_IN: dict[int, tuple[int, ...]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


class Acl(NamedTuple):
    """One ACL, with the fields of its record. The host is an IP address or a network, such as 10.0.0.0/8."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    def concerns(self, principal: str, host: str) -> bool:
        """Return whether the ACL applies to requests of this principal from this host."""
        if self.principal not in (principal, ANY_PRINCIPAL):
            return False
        return self.host in (host, WILDCARD) or ("/" in self.host and is_in_network(host, self.host))

    def covers(self, operation: int) -> bool:
        """Return whether the ACL applies to this operation. An ACL that allows READ, for example, also allows DESCRIBE.
        An ACL that denies READ does not deny DESCRIBE."""
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission_type == Permission.ALLOW and self.operation in _INCLUDED_IN.get(operation, ())


class AclTable:
    """All ACLs. The records of the metadata log add and remove them."""

    def __init__(self) -> None:
        self.by_id: dict[UUID, Acl] = {}
        #: Type of the resource and type of the pattern -> name -> ACLs.
        self._by_pattern: dict[tuple[int, int], dict[str, dict[Acl, None]]] = {}

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._by_pattern.get((acl.resource_type, acl.pattern_type), {}).get(acl.resource_name, ())

    def add(self, record: messages.AccessControlEntryRecord) -> None:
        """Apply the record of a new ACL."""
        acl = self.by_id[record.id] = Acl(*(getattr(record, name) for name in Acl._fields))
        patterns = self._by_pattern.setdefault((acl.resource_type, acl.pattern_type), {})
        patterns.setdefault(acl.resource_name, {})[acl] = None

    def remove(self, record: messages.RemoveAccessControlEntryRecord) -> None:
        """Apply the record of a removed ACL."""
        acl = self.by_id.pop(record.id)
        patterns = self._by_pattern[acl.resource_type, acl.pattern_type]
        patterns[acl.resource_name].pop(acl)
        if not patterns[acl.resource_name]:
            del patterns[acl.resource_name]

    def of(self, resource_type: int, name: str) -> Iterator[Acl]:
        """Iterate over the ACLs whose pattern matches a resource."""
        literal = self._by_pattern.get((resource_type, PatternType.LITERAL), {})
        for pattern in dict.fromkeys((name, WILDCARD)):
            yield from literal.get(pattern, ())
        for prefix, acls in self._by_pattern.get((resource_type, PatternType.PREFIXED), {}).items():
            if name.startswith(prefix):
                yield from acls


def is_chosen(acl: Acl, chosen: Any) -> bool:
    """Return whether a filter of DescribeAcls or DeleteAcls matches an ACL (Kafka: AclBindingFilter)."""
    pairs = (
        (chosen.resource_type_filter, ResourceType.ANY, acl.resource_type),
        (chosen.principal_filter, None, acl.principal),
        (chosen.host_filter, None, acl.host),
        (chosen.operation, Operation.ANY, acl.operation),
        (chosen.permission_type, Permission.ANY, acl.permission_type),
    )
    if any(wanted not in (anything, found) for wanted, anything, found in pairs):
        return False
    name, pattern = chosen.resource_name_filter, chosen.pattern_type_filter
    if pattern == PatternType.MATCH and name is not None:
        is_prefix = acl.pattern_type == PatternType.PREFIXED
        return name.startswith(acl.resource_name) if is_prefix else acl.resource_name in (name, WILDCARD)
    is_right_type = pattern in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
    return is_right_type and name in (None, acl.resource_name)


def is_in_network(host: str, network: str) -> bool:
    """Return whether an address is in a network in CIDR notation."""
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False
