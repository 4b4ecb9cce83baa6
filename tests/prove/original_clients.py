# SPDX-License-Identifier: Apache-2.0
"""Parts of programs that proofs run with another project's client and with the facade of kcodec.compat.

A program that has found the original client in its process exits with ORIGINAL_FOUND, otherwise with 0.
"""

from __future__ import annotations

#: Exit status of a program that has found the original client in its process.
ORIGINAL_FOUND = 7
#: Package of the original client -> statements that install the facade.
INSTALLS = {
    "confluent-kafka": "import kcodec.compat.confluent\n\nkcodec.compat.confluent.install()\n",
    "aiokafka": "import kcodec.compat.aiokafka\n\nkcodec.compat.aiokafka.install(clients=True)\n",
    "kafka-python": "import kcodec.compat.kafka_python\n\nkcodec.compat.kafka_python.install()\n",
}
#: Defines found_original(): whether librdkafka has threads in this process now.
FOUND_LIBRDKAFKA = """
import sys
from pathlib import Path


def found_original():
    return any(path.read_text().startswith("rdk:") for path in Path("/proc/self/task").glob("*/comm"))


"""
#: Defines found_original(): whether aiokafka's own client has opened a connection.
FOUND_AIOKAFKA = """
import asyncio
import sys

import aiokafka.conn

connect, opened = aiokafka.conn.AIOKafkaConnection.connect, []


def counted(connection):
    opened.append(connection)
    return connect(connection)


aiokafka.conn.AIOKafkaConnection.connect = counted


def found_original():
    return bool(opened)


"""
