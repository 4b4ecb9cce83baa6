# SPDX-License-Identifier: Apache-2.0
"""Client quotas (KIP-546). entity_type is "user", "client-id" or "ip"; a name of None is the default of that type."""

from __future__ import annotations

from kcodec.protocol.schema import Request, Response, Struct, array, boolean, float64, int8, int16, int32, string


class QuotaFilterComponent(Struct):
    """One condition on an entity. match_type 0: the name `match`, 1: the default, 2: any name."""

    entity_type: str = string("0+")
    match_type: int = int8("0+")
    match: str | None = string("0+", nullable="0+")


class DescribeClientQuotasRequest(Request, key=48, versions="0-1", flexible="1+"):
    """Request the quotas of entities. strict: without entities that have other types as well."""

    components: list[QuotaFilterComponent] = array(QuotaFilterComponent, "0+")
    strict: bool = boolean("0+")


class QuotaEntityPart(Struct):
    """One type of an entity and its name."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class QuotaValue(Struct):
    """A quota, such as consumer_byte_rate, and its value."""

    key: str = string("0+")
    value: float = float64("0+")


class DescribedQuotaEntity(Struct):
    """An entity and its quotas."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart, "0+")
    values: list[QuotaValue] = array(QuotaValue, "0+")


class DescribeClientQuotasResponse(Response, key=48, versions="0-1", flexible="1+"):
    """The quotas."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entries: list[DescribedQuotaEntity] | None = array(DescribedQuotaEntity, "0+", nullable="0+")


class QuotaChange(Struct):
    """A quota to set or to remove."""

    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class AlteredQuotaEntity(Struct):
    """An entity and the changes of its quotas."""

    entity: list[QuotaEntityPart] = array(QuotaEntityPart, "0+")
    ops: list[QuotaChange] = array(QuotaChange, "0+")


class AlterClientQuotasRequest(Request, key=49, versions="0-1", flexible="1+"):
    """Change these quotas and keep all others."""

    entries: list[AlteredQuotaEntity] = array(AlteredQuotaEntity, "0+")
    validate_only: bool = boolean("0+")


class AlterClientQuotasResult(Struct):
    """Whether the quotas of one entity were changed."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entity: list[QuotaEntityPart] = array(QuotaEntityPart, "0+")


class AlterClientQuotasResponse(Response, key=49, versions="0-1", flexible="1+"):
    """The results for all entities."""

    throttle_time_ms: int = int32("0+")
    entries: list[AlterClientQuotasResult] = array(AlterClientQuotasResult, "0+")
