# SPDX-License-Identifier: Apache-2.0
"""A Kafka broker in one process, for development, tests and demos: a single node, started in milliseconds.

    from kcodec.broker import Broker
    from kcodec.client import Producer

    with Broker() as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="a") as producer:
            with producer.transaction() as txn:
                txn.send("orders", b"17")

core.py has all state and no I/O: it takes request frames and a clock, and returns response frames. server.py adds the
sockets, and embedded.py a thread. api.py defines what a handler gets and returns. produce.py, fetch.py and offsets.py
are the APIs of the leader of a partition, and partition_log.py, segment.py and producer_state.py its state. topics.py
is the controller, transactions/ the transaction coordinator, groups/ the group coordinator, authorizer/ the authorizer,
and admin/ the administration. faults.py, clock.py and wire_log.py are for tests.
"""

from kcodec._lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kcodec.broker.embedded import Broker, EmbeddedBrokerError
    from kcodec.broker.faults import FaultRule, parse_rule
    from kcodec.broker.settings import BrokerSettings
    from kcodec.broker.wire_log import WireEntry
del TYPE_CHECKING

__all__ = ["Broker", "BrokerSettings", "EmbeddedBrokerError", "FaultRule", "WireEntry", "parse_rule"]

_EXPORTS = {
    "Broker": "kcodec.broker.embedded",
    "EmbeddedBrokerError": "kcodec.broker.embedded",
    "BrokerSettings": "kcodec.broker.settings",
    "FaultRule": "kcodec.broker.faults",
    "WireEntry": "kcodec.broker.wire_log",
    "parse_rule": "kcodec.broker.faults",
}

__getattr__, __dir__ = lazy_exports("kcodec.broker", _EXPORTS)
