# SPDX-License-Identifier: Apache-2.0
"""The records of Kafka's internal topics, and the coordinators' state that follows from them.

records.py finds the message of a record, transactions.py and offsets.py replay the coordinators' topics, topics.py the
metadata log.
"""
