# SPDX-License-Identifier: Apache-2.0
"""Decisions from the ACLs of the metadata log, as Kafka's StandardAuthorizer makes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kcodec.broker.authorizer.acls import WILDCARD, AclTable, Operation, PatternType, Permission


class Requester(Protocol):
    """The client whose request is checked."""

    @property
    def principal(self) -> str:
        """The principal, such as "User:alice"."""
        ...

    @property
    def address(self) -> str:
        """The IP address, as Java writes it."""
        ...


class Authorizer:
    """Decides which operations clients may perform.

    super_users:        Principals that may perform every operation.
    allows_without_acl: Whether every operation is allowed on a resource that no ACL matches.
    """

    def __init__(self, acls: AclTable, super_users: Iterable[str], *, allows_without_acl: bool) -> None:
        self._acls = acls
        self._super_users = frozenset(super_users)
        self._allows_without_acl = allows_without_acl

    def allows(self, client: Requester, operation: int, resource_type: int, name: str) -> bool:
        """Return whether a client may perform an operation on a resource."""
        principal, host = client.principal, client.address
        if principal in self._super_users:
            return True
        has_acl = is_allowed = False
        for acl in self._acls.of(resource_type, name):
            has_acl = True
            if acl.covers(operation) and acl.concerns(principal, host):
                if acl.permission_type == Permission.DENY:
                    return False
                is_allowed = True
        return is_allowed or (self._allows_without_acl and not has_acl)

    def allows_any(self, client: Requester, operation: int, resource_type: int) -> bool:
        """Return whether a client may perform an operation on at least one resource of a type
        (Kafka: Authorizer.authorizeByResourceType)."""
        if self.allows(client, operation, resource_type, "hardcode"):  # Kafka's name; for super users
            return True
        patterns: dict[int, set[tuple[int, str]]] = {Permission.DENY: set(), Permission.ALLOW: set()}
        for acl in self._acls.by_id.values():
            is_about = acl.resource_type == resource_type and acl.operation in (operation, Operation.ALL)
            if is_about and acl.concerns(client.principal, client.address):
                patterns[acl.permission_type].add((acl.pattern_type, acl.resource_name))
        denied, allowed = patterns[Permission.DENY], patterns[Permission.ALLOW]
        everything = (PatternType.LITERAL, WILDCARD)
        if everything in denied or everything in allowed:
            return everything not in denied
        return any(
            (kind != PatternType.LITERAL or (kind, name) not in denied)
            and not any((PatternType.PREFIXED, name[:end]) in denied for end in range(1, len(name) + 1))
            for kind, name in allowed
        )

    def operations(self, client: Requester, resource_type: int, name: str, supported: int) -> int:
        """Return the operations that a client may perform on a resource, as bits (KIP-430).

        supported: The operations that this type of resource supports, as bits.
        """
        return sum(
            1 << operation
            for operation in Operation
            if supported >> operation & 1 and self.allows(client, operation, resource_type, name)
        )
