# SPDX-License-Identifier: Apache-2.0
"""For tests: a real Apache Kafka on loopback, and what tests of Kafka clients need in addition.

kafka.py starts the brokers (node.py, properties.py, security.py), and pytest_plugin.py has fixtures. certificates.py
and tokens.py issue certificates and OAuth tokens. proxy/ holds back, drops and changes requests and responses.
bounded_reads/ checks whether readers find the end of a topic. The embedded broker, which needs no Java, is
`kcodec.broker`.

The extra ``testing`` installs the dependencies. Run ``pip install ".[testing]"`` in the checkout of kcodec.
"""
