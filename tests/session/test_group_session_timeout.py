# SPDX-License-Identifier: Apache-2.0
"""The session time-out of a KIP-848 group: the group's own, the broker's, or a reason why it is not known."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_group_script import GroupWorld
from transaction_script import HANG, HIGHEST, LOST

from kcodec.errors import AuthenticationError, UnsupportedError
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.messages import configs
from kcodec.session.group_session_timeout import GroupSessionTimeout, group_session_timeout

HIGHEST["DescribeConfigs"] = 4
ASKED = "DescribeConfigs"


class SettingsWorld(GroupWorld):
    """values: by the resource's type; a type that is not there is answered INVALID_REQUEST."""

    def __init__(self, values: dict[int, dict[str, str | None]]) -> None:
        super().__init__()
        self.values = values

    def _DescribeConfigs(self, request: Any, version: int, code: int) -> Any:
        (asked,) = request.resources
        known = self.values.get(asked.resource_type)
        result = configs.DescribeConfigsResult(
            error_code=code or (0 if known is not None else 42),
            error_message="as planned",
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=[
                configs.DescribeConfigsResourceResult(name=name, value=value)
                for name, value in (known or {}).items()
                if name in asked.configuration_keys
            ],
        )
        return configs.DescribeConfigsResponse(results=[result])


GROUP: dict[str, str | None] = {
    "consumer.session.timeout.ms": "50000",
    "consumer.heartbeat.interval.ms": "6000",
    "share.x": "1",
}
BROKER: dict[str, str | None] = {
    "group.consumer.session.timeout.ms": "45000",
    "group.consumer.heartbeat.interval.ms": "5000",
}


def found(world: GroupWorld, timeout: float = 5.0) -> GroupSessionTimeout:
    result = world.run(group_session_timeout(world.cluster, "readers", timeout))
    assert isinstance(result, GroupSessionTimeout)
    return result


def test_the_settings_of_the_group_win() -> None:
    world = SettingsWorld({32: GROUP, 4: BROKER})
    assert found(world) == GroupSessionTimeout(50.0, 6.0, "group")
    assert [one.request.resources[0].resource_name for one in world.asked] == ["readers"]


@pytest.mark.parametrize(
    "fault",
    [30, 42, 35, UnsupportedError("no version"), lambda answer: type(answer)()],
    ids=lambda fault: "empty" if callable(fault) else str(fault),
)
def test_a_group_that_cannot_be_described_has_its_brokers_default(fault: Any) -> None:
    world = SettingsWorld({32: GROUP, 4: BROKER})
    world.plan(ASKED, fault)
    assert found(world) == GroupSessionTimeout(45.0, 5.0, "broker")
    assert world.asked[-1].request.resources[0].resource_name == "1"


def test_what_is_lost_on_the_way_is_asked_again() -> None:
    world = SettingsWorld({32: GROUP})
    world.plan(ASKED, LOST, ErrorCode.COORDINATOR_NOT_AVAILABLE, LOST)
    assert found(world).source == "group"


@pytest.mark.parametrize("value", [None, "", "soon", "0", "-1"])
def test_a_value_that_makes_no_sense_is_not_known(value: str | None) -> None:
    world = SettingsWorld({32: {"consumer.session.timeout.ms": value}, 4: {}})
    result = found(world)
    assert not result.is_known
    assert "consumer.session.timeout.ms" in result.source


def test_without_permission_the_reason_is_given() -> None:
    world = SettingsWorld({})
    world.plan(ASKED, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    result = found(world)
    assert (result.session_timeout, result.heartbeat_interval, result.is_known) == (None, None, False)
    assert "GROUP_AUTHORIZATION_FAILED" in result.source
    assert "CLUSTER_AUTHORIZATION_FAILED" in result.source


def test_without_response_it_ends_by_its_time() -> None:
    world = SettingsWorld({32: GROUP})
    world.plan(ASKED, *[HANG] * 9)
    began = world.now
    assert not found(world, 3.0).is_known
    assert world.now - began <= 3.0


def test_a_refused_login_is_raised() -> None:
    world = SettingsWorld({32: GROUP})
    world.plan(ASKED, AuthenticationError("wrong password"))
    with pytest.raises(AuthenticationError):
        found(world)
