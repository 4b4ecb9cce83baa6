# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between Kafka clients and brokers that parses frames, to hold, drop, cut, duplicate, replace or answer a
given request or response, and to check what was sent.

    with KafkaProxy(broker.bootstrap_servers) as proxy:
        late = proxy.on_request("EndTxn", nth=2).hold(2.0, cut_client=True)
        ...                                        # a client with bootstrap_servers=proxy.bootstrap_servers
        late.wait_hit(10.0)
    assert proxy.versions("EndTxn") == {5}

Each broker gets a separate loopback port when a response first names it: the addresses in responses (Metadata,
FindCoordinator, DescribeCluster, leaders named by Produce and Fetch) are replaced by those of the proxy's ports.
For the traffic between brokers, or with TLS, `listen` returns ports to advertise. Everything ends with `close()`, and
with the process.
"""

from kcodec.testing.proxy.frames import Exchange
from kcodec.testing.proxy.proxy import KafkaProxy, Port, join_address, split_address
from kcodec.testing.proxy.rules import Selection

__all__ = ["Exchange", "KafkaProxy", "Port", "Selection", "join_address", "split_address"]
