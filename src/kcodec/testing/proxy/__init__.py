# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between Kafka clients and brokers that holds, drops, duplicates or replaces requests and responses.

It parses the frames, so a test can select a request by its API and number, and check afterwards what was sent.

    with KafkaProxy(broker.bootstrap_servers) as proxy:
        late = proxy.on_request("EndTxn", nth=2).hold(2.0, cut_client=True)
        ...                                        # a client with bootstrap_servers=proxy.bootstrap_servers
        late.wait_hit(10.0)
    assert proxy.versions("EndTxn") == {5}

When a response names a broker for the first time, the proxy opens a loopback port for this broker. In responses
(Metadata, FindCoordinator, DescribeCluster, leaders named by Produce and Fetch), the proxy replaces the addresses of
brokers by those of its ports. For the traffic between brokers, or with TLS, `listen` returns ports to advertise. The
proxy ends with `close()` or with the process.
"""

from kcodec.testing.proxy.frames import Exchange
from kcodec.testing.proxy.proxy import KafkaProxy, Port, join_address, split_address
from kcodec.testing.proxy.rules import Selection

__all__ = ["Exchange", "KafkaProxy", "Port", "Selection", "join_address", "split_address"]
