# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between Kafka clients and brokers that knows frames: to hold, drop, cut, duplicate, replace or answer a
given request or response, and to see on the wire what was spoken.

    with KafkaProxy(broker.bootstrap_servers) as proxy:
        late = proxy.on_request("EndTxn", nth=2).hold(2.0, cut_client=True)
        ...                                        # a client with bootstrap_servers=proxy.bootstrap_servers
        late.wait_hit(10.0)
    assert proxy.versions("EndTxn") == {5}

Each broker gets a loopback port of its own when an answer first names it: the addresses in answers (Metadata,
FindCoordinator, DescribeCluster, leaders named by Produce and Fetch) are replaced by those of the proxy's ports.
For what brokers say to each other, or behind TLS, `listen` gives ports to advertise. It all ends with `close()`, and
with the process.
"""

from kcodec.testing.proxy.frames import Exchange
from kcodec.testing.proxy.proxy import KafkaProxy, Port, join_address, split_address
from kcodec.testing.proxy.rules import Selection

__all__ = ["Exchange", "KafkaProxy", "Port", "Selection", "join_address", "split_address"]
