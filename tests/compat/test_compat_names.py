# SPDX-License-Identifier: Apache-2.0
"""What can be imported from kcodec.compat.confluent and kcodec.compat.aiokafka: the clients of kcodec, and the values
of the other client, but not the clients that kcodec does not have."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import pytest

import kcodec.compat.aiokafka as for_aiokafka
import kcodec.compat.confluent as for_confluent

OWN_CONFLUENT = {"AdminClient", "Consumer", "DeserializingConsumer", "Producer", "SerializingProducer"}
OWN_AIOKAFKA = {"AIOKafkaAdminClient", "AIOKafkaConsumer", "AIOKafkaProducer"}
#: Compiled classes of confluent_kafka are in cimpl.
HOMES = ("aiokafka", "confluent_kafka", "cimpl")
NO_CLIENTS = {"AIOKafkaClient", "DeserializingShareConsumer", "ShareConsumer"}


def values_of(module: Any) -> set[str]:
    """The classes and functions that the module defines, and its constants in __all__."""
    classes = {name for name, value in vars(module).items() if inspect.isclass(value)}
    own = {name for name in classes if getattr(module, name).__module__.startswith(HOMES)}
    found = {name for name in (*own, *getattr(module, "__all__", ())) if hasattr(module, name)}
    return {name for name in found if not name.startswith("_") and not inspect.ismodule(getattr(module, name))}


@pytest.mark.parametrize(
    ("facade", "module", "own"),
    [
        (for_confluent, confluent_kafka, OWN_CONFLUENT),
        (for_confluent, confluent_kafka.admin, OWN_CONFLUENT),
        (for_aiokafka, aiokafka, OWN_AIOKAFKA),
    ],
)
def test_a_program_imports_everything_from_the_facade(facade: Any, module: Any, own: set[str]) -> None:
    names = values_of(module) - NO_CLIENTS
    assert len(names) > 5
    for name in names - own:
        assert getattr(facade, name) is getattr(module, name)
    for name in own & names:
        assert getattr(facade, name).__module__.startswith("kcodec.")


def test_constants_of_the_admin_module_are_there() -> None:
    for name in ("RESOURCE_TOPIC", "RESOURCE_BROKER", "CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG"):
        assert getattr(for_confluent, name) == getattr(confluent_kafka.admin, name)


def test_a_tool_that_looks_for_a_private_name_does_not_import_the_other_client() -> None:
    code = (
        "import sys, kcodec.compat.confluent as one, kcodec.compat.aiokafka as two;"
        "assert not hasattr(one, '_repr_html_') and not hasattr(two, '_repr_html_');"
        "assert not {'confluent_kafka', 'aiokafka'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("facade", [for_confluent, for_aiokafka])
@pytest.mark.parametrize("name", [*sorted(NO_CLIENTS), "admin", "os", "warnings", "Optional", "Consumre", "__path__"])
def test_other_names_are_attribute_errors(facade: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{facade.__name__}' has no attribute '{name}'"):
        getattr(facade, name)
