# SPDX-License-Identifier: Apache-2.0
"""For tests: a real Apache Kafka on loopback.

`kcodec.testing.kafka` starts it, and `kcodec.testing.pytest_plugin` has fixtures. The extra ``testing`` installs the
dependencies. Run ``pip install ".[testing]"`` in the checkout of kcodec.
"""
