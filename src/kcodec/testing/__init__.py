# SPDX-License-Identifier: Apache-2.0
"""For tests: a real Apache Kafka on loopback.

`kcodec.testing.kafka` starts it, `kcodec.testing.pytest_plugin` has fixtures.
What it needs beside kcodec comes with ``pip install kcodec[testing]``.
"""
