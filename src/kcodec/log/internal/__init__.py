# SPDX-License-Identifier: Apache-2.0
"""The records that Kafka writes for itself, and what the coordinators know by them.

records.py says which message a record holds, transactions.py and offsets.py replay the coordinators' topics, topics.py
the metadata log.
"""
