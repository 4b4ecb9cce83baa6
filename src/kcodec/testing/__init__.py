# SPDX-License-Identifier: Apache-2.0
"""For tests: a real Apache Kafka on loopback.

`kcodec.testing.kafka` starts it, `kcodec.testing.pytest_plugin` has fixtures.
``pip install kcodec[testing]`` installs its dependencies.
"""
