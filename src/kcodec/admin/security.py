# SPDX-License-Identifier: Apache-2.0
"""Flows of Admin: permissions (ACLs) and SCRAM credentials."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from kcodec.admin.checks import check_members, check_numbers, check_text
from kcodec.arguments import items_of, names_of
from kcodec.cluster.retry_driver import ApiHandler, CallContext, ItemResult, entries, request_items, results, whole
from kcodec.cluster.retry_routes import AnyBroker, Controller
from kcodec.flow import Flow
from kcodec.integers import shown
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode, broker_error

SALT_BYTES = 32
# Kafka: ScramMechanism. Brokers accept 4096 to 16384 iterations.
DEFAULT_ITERATIONS = 4096


class _OrUnknown(IntEnum):
    """An enumeration in which numbers of newer Kafka versions become UNKNOWN, as in Kafka's own enumerations."""

    @classmethod
    def _missing_(cls, value: object) -> _OrUnknown | None:
        return cls(0) if isinstance(value, int) and value != 0 else None


class ResourceType(_OrUnknown):
    """The type of resource of a permission. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_OrUnknown):
    """The meaning of a resource name. ANY and MATCH (all that apply to a name) are for filters (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_OrUnknown):
    """The operation that is allowed or denied. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


#: Value in a response if the operations were not requested, or if the broker does not know them.
_NO_OPERATIONS = -(2**31)


def operations_of(bits: int) -> frozenset[AclOperation] | None:
    """Return the operations that a response allows the client (KIP-430). Return None if the response has none.

    bits: A bit for the number of each operation.
    """
    if bits == _NO_OPERATIONS:
        return None
    return frozenset(one for one in AclOperation if bits >> one & 1)


class AclPermission(_OrUnknown):
    """Whether the operation is allowed or denied. ANY is for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True)
class AclBinding:
    """A permission, which allows or denies a principal an operation on a resource.

    resource_type: Type of the resource.
    resource_name: Name of the resource, or a prefix of names. "*" with PatternType.LITERAL stands for all resources.
    principal: The principal, such as "User:alice". "User:*" stands for all principals.
    operation: The operation.
    permission: Whether the operation is allowed or denied.
    host: Address of the client. "*" stands for all addresses.
    pattern_type: LITERAL for one name, PREFIXED for all names with that prefix.
    """

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"
    pattern_type: PatternType = PatternType.LITERAL

    def __post_init__(self) -> None:
        check_members(
            self,
            resource_type=ResourceType,
            operation=AclOperation,
            permission=AclPermission,
            pattern_type=PatternType,
        )
        check_text(self, "resource_name", "principal", "host")

    def __str__(self) -> str:
        what = f"{self.pattern_type.name.lower()} {self.resource_type.name.lower()} {self.resource_name!r}"
        return (
            f"{self.permission.name.lower()} {self.principal} {self.operation.name.lower()} on {what} from {self.host}"
        )


@dataclass(frozen=True)
class AclFilter:
    """A filter that selects the permissions that are equal in all given fields. None and ANY match everything.

    resource_type: Type of the resource.
    resource_name: Name of the resource.
    principal: The principal, such as "User:alice".
    operation: The operation.
    permission: Whether the operation is allowed or denied.
    host: Address of the client, as in the permission. "*" selects permissions that are for all addresses.
    pattern_type: Type of the pattern of the permission. MATCH selects all permissions that apply to `resource_name`.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY
    host: str | None = None
    pattern_type: PatternType = PatternType.ANY

    def __post_init__(self) -> None:
        check_members(
            self,
            resource_type=ResourceType,
            operation=AclOperation,
            permission=AclPermission,
            pattern_type=PatternType,
        )
        check_text(self, "resource_name", "principal", "host", or_none=True)


class ScramMechanism(_OrUnknown):
    """The SCRAM mechanism, which is named after its hash."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash_name(self) -> str:
        """The name of the hash in hashlib. Raise ValueError for UNKNOWN."""
        names = {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}
        if self not in names:
            raise ValueError(f"{self!r} has no known hash; use SCRAM_SHA_256 or SCRAM_SHA_512")
        return names[self]


@dataclass(frozen=True)
class ScramCredentialInfo:
    """The public properties of a credential, without password and salt.

    mechanism: The SCRAM mechanism.
    iterations: Number of iterations of the hash.
    """

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True)
class ScramCredentialUpsertion:
    """A password to set for a user.

    user: Name of the user.
    password: The password. Only its salted hash is sent to the broker.
    mechanism: The SCRAM mechanism for which the password is set.
    iterations: Number of iterations of the hash. Brokers accept 4096 to 16384.
    """

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = DEFAULT_ITERATIONS

    def __post_init__(self) -> None:
        check_members(self, is_secret=True, mechanism=ScramMechanism)
        check_text(self, "user")
        check_numbers(self, "iterations")
        if not isinstance(self.password, str):  # the error must not show it
            raise TypeError(
                f"ScramCredentialUpsertion: password must be a str, got a value of type {type(self.password).__name__}"
            )


@dataclass(frozen=True)
class ScramCredentialDeletion:
    """A credential to delete.

    user: Name of the user.
    mechanism: The SCRAM mechanism whose credential is deleted.
    """

    user: str
    mechanism: ScramMechanism

    def __post_init__(self) -> None:
        check_members(self, mechanism=ScramMechanism)
        check_text(self, "user")


def create_acls(
    context: CallContext, bindings: Iterable[AclBinding], *, timeout: float | None = None
) -> Flow[dict[AclBinding, None]]:
    """Add permissions.

    bindings: Permissions to add.

    Raise ValueError if a field of a permission has a value that is only for filters, such as AclOperation.ANY. Raise
    AuthorizationError without ALTER on the cluster. Raise BrokerError (SECURITY_DISABLED) if the cluster has no
    authorizer. For several permissions, an AdminError contains the errors.
    """
    handler: ApiHandler[AclBinding, None] = ApiHandler(
        "create acl",
        Controller(context.cluster),
        lambda some, until: messages.CreateAclsRequest(creations=[acl_creation(one) for one in some]),
        lambda response, some: (
            (one, ItemResult(result.error_code, None, result.error_message))
            for one, result in zip(some, response.results, strict=False)
        ),
        lowest=1,
    )
    given = items_of(bindings, AclBinding, "bindings")
    for one in given:
        _check_complete(one)
    return results(context, given, handler, timeout)


def _check_complete(binding: AclBinding) -> None:
    """Raise ValueError for a value that is only for filters. For such a value, a broker responds with
    UNKNOWN_SERVER_ERROR for all permissions of the request (Kafka: AclBinding and AccessControlEntry)."""
    for name, only_filters in (
        ("resource_type", (ResourceType.ANY,)),
        ("operation", (AclOperation.ANY,)),
        ("permission", (AclPermission.ANY,)),
        ("pattern_type", (PatternType.ANY, PatternType.MATCH)),
    ):
        value: IntEnum = getattr(binding, name)
        if value in only_filters or value.value == 0:
            use = "" if value.value == 0 else "; only an AclFilter can contain it"
            raise ValueError(f"bindings: AclBinding.{name} must not be {type(value).__name__}.{value.name}{use}")


def acl_creation(binding: AclBinding) -> Any:
    """Return a permission as an element of a CreateAcls request."""
    return messages.AclCreation(
        resource_type=int(binding.resource_type),
        resource_name=binding.resource_name,
        resource_pattern_type=int(binding.pattern_type),
        principal=binding.principal,
        host=binding.host,
        operation=int(binding.operation),
        permission_type=int(binding.permission),
    )


def describe_acls(
    context: CallContext, which: AclFilter | None = None, *, timeout: float | None = None
) -> Flow[list[AclBinding]]:
    """Return the permissions that a filter selects, or all permissions without a filter.

    Raise AuthorizationError without DESCRIBE on the cluster.
    """
    if which is not None and not isinstance(which, AclFilter):
        raise TypeError(f"which: expected AclFilter or None, got {shown(which)} of type {type(which).__name__}")
    chosen = which or AclFilter()
    handler: ApiHandler[AclFilter, list[AclBinding]] = ApiHandler(
        "describe acls",
        AnyBroker(),
        lambda some, until: messages.DescribeAclsRequest(**acl_filter_fields(chosen)),
        lambda response, some: whole(
            response, some, lambda response: [_binding(one, acl) for one in response.resources for acl in one.acls]
        ),
        named=lambda chosen: "of the cluster",
        lowest=1,
    )
    return (yield from results(context, [chosen], handler, timeout))[chosen]


def acl_filter_fields(chosen: AclFilter | AclBinding) -> dict[str, Any]:
    """Return the fields of a filter in DescribeAcls and DeleteAcls requests."""
    return {
        "resource_type_filter": int(chosen.resource_type),
        "resource_name_filter": chosen.resource_name,
        "pattern_type_filter": int(chosen.pattern_type),
        "principal_filter": chosen.principal,
        "host_filter": chosen.host,
        "operation": int(chosen.operation),
        "permission_type": int(chosen.permission),
    }


def _binding(resource: Any, acl: Any) -> AclBinding:
    """Return the permission that a response describes by `resource` and `acl`."""
    return AclBinding(
        ResourceType(resource.resource_type),
        resource.resource_name,
        acl.principal,
        AclOperation(acl.operation),
        AclPermission(acl.permission_type),
        acl.host,
        PatternType(resource.pattern_type),
    )


def delete_acls(
    context: CallContext, filters: Iterable[AclFilter], *, timeout: float | None = None
) -> Flow[dict[AclFilter, list[AclBinding]]]:
    """Delete the permissions that filters select, and return them.

    A request whose response is lost is repeated. Permissions that the earlier request has deleted are then missing from
    the result.

    Raise AuthorizationError without ALTER on the cluster, or another BrokerError. For several filters, an AdminError
    contains the errors.
    """
    handler: ApiHandler[AclFilter, list[AclBinding]] = ApiHandler(
        "delete acls",
        Controller(context.cluster),
        lambda some, until: messages.DeleteAclsRequest(
            filters=[messages.DeleteAclsFilter(**acl_filter_fields(one)) for one in some]
        ),
        _deleted,
        lowest=1,
    )
    return results(context, items_of(filters, AclFilter, "filters"), handler, timeout)


def _deleted(response: Any, filters: list[AclFilter]) -> Iterator[tuple[AclFilter, ItemResult]]:
    for one, result in zip(filters, response.filter_results, strict=False):
        failed = next((acl for acl in result.matching_acls if acl.error_code), result)
        gone = [_binding(acl, acl) for acl in result.matching_acls if acl.error_code == ErrorCode.NONE]
        yield one, ItemResult(failed.error_code, gone, failed.error_message)


def describe_user_scram_credentials(
    context: CallContext, users: Iterable[str] | None = None, *, timeout: float | None = None
) -> Flow[dict[str, tuple[ScramCredentialInfo, ...]]]:
    """Return the SCRAM credentials of users (KIP-554). A user without credentials has an empty tuple.

    users: Names of the users. None: all users.

    Raise AuthorizationError without DESCRIBE on the cluster. If the broker reports an error for a user, raise this
    BrokerError for the whole call.
    """
    names = None if users is None else list(dict.fromkeys(names_of(users, "users")))
    if names == []:
        return {}  # a broker would return all users
    handler: ApiHandler[str, dict[str, tuple[ScramCredentialInfo, ...]]] = ApiHandler(
        "describe scram credentials of",
        AnyBroker(),
        lambda some, until: messages.DescribeUserScramCredentialsRequest(
            users=None if names is None else [messages.ScramUserName(name=name) for name in names]
        ),
        lambda response, some: whole(response, some, lambda found: {} if found.error_code else _credentials(found)),
        named=str,
    )
    return (yield from results(context, ["users"], handler, timeout))["users"]


def _credentials(response: Any) -> dict[str, tuple[ScramCredentialInfo, ...]]:
    found = {}
    for result in response.results:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND):
            raise broker_error(
                result.error_code, f"describe scram credentials of {result.user!r}", message=result.error_message
            )
        found[result.user] = tuple(
            ScramCredentialInfo(ScramMechanism(info.mechanism), info.iterations) for info in result.credential_infos
        )
    return found


def alter_user_scram_credentials(
    context: CallContext,
    alterations: Iterable[ScramCredentialUpsertion | ScramCredentialDeletion],
    *,
    timeout: float | None = None,
) -> Flow[dict[str, None]]:
    """Set passwords and delete credentials, by user (KIP-554).

    alterations: Passwords to set and credentials to delete.

    Use TLS, because a salted password is as confidential as the password.

    A request whose response is lost is repeated. If a credential to delete then does not exist, its deletion has
    succeeded.

    Raise AuthorizationError without ALTER on the cluster. Raise BrokerError (RESOURCE_NOT_FOUND) if a credential to
    delete does not exist, and BrokerError (UNACCEPTABLE_CREDENTIAL) if the broker does not accept one. For several
    users, an AdminError contains the errors.
    """
    changes = items_of(alterations, (ScramCredentialUpsertion, ScramCredentialDeletion), "alterations")
    sets = {id(one): _salted(one) for one in changes if isinstance(one, ScramCredentialUpsertion)}

    def request(users: list[str], are_deleted: bool = True) -> Any:
        return messages.AlterUserScramCredentialsRequest(
            upsertions=[sets[id(one)] for one in changes if id(one) in sets and one.user in users],
            deletions=[
                messages.ScramCredentialDeletion(name=one.user, mechanism=int(one.mechanism))
                for one in changes
                if isinstance(one, ScramCredentialDeletion) and one.user in users and are_deleted
            ],
        )

    with_sets = {one.user for one in changes if id(one) in sets}
    handler: ApiHandler[str, None] = ApiHandler(
        "alter scram credentials of",
        Controller(context.cluster),
        lambda users, until: request(users),
        lambda response, users: entries(response.results, "user"),
        is_reached=lambda user, code: code == ErrorCode.RESOURCE_NOT_FOUND and user not in with_sets,
    )

    def alter() -> Flow[dict[str, None]]:
        deadline = context.deadline(timeout)
        outcome = yield from request_items(context, [one.user for one in changes], handler, deadline)
        # A broker changes no credential of a user if it does not find one to delete.
        rest = outcome.repeated_with(ErrorCode.RESOURCE_NOT_FOUND)
        only_sets = replace(handler, request=lambda users, until: request(users, are_deleted=False))
        again = yield from request_items(context, rest, only_sets, deadline)
        for user in again.results:
            outcome.succeed(user, None)
        outcome.errors |= again.errors
        return outcome.value()

    return alter()  # the passwords are salted on the thread of the caller


def _salted(upsertion: ScramCredentialUpsertion) -> Any:
    salt = os.urandom(SALT_BYTES)
    name, iterations = upsertion.mechanism.hash_name, upsertion.iterations
    return messages.ScramCredentialUpsertion(
        name=upsertion.user,
        mechanism=int(upsertion.mechanism),
        iterations=iterations,
        salt=salt,
        salted_password=hashlib.pbkdf2_hmac(name, upsertion.password.encode(), salt, iterations),
    )
