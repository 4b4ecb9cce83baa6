# SPDX-License-Identifier: Apache-2.0
"""Kafka's own system test of transactions in small: sessions of a group copy a topic, one is killed, and readers
follow.

prove_copy.py is the long form: more records, brokers killed too, other brokers, Kafka's own copier in the group.
"""

from __future__ import annotations

from copy_story import CopyReport, CopyStory, kill_session

from kcodec.testing.kafka import ApacheKafka


def test_a_group_of_sessions_copies_each_record_once(apache_kafka: ApacheKafka) -> None:
    story = CopyStory(apache_kafka, count=1500, sessions=2, size=100, session_timeout_ms=1000, seconds=60.0)
    report = story.run([kill_session])
    assert report.faults() == [], story.reported()
    assert report.said["aborted"] > 0
    story.forget()


def test_the_judge_sees_each_kind_of_fault() -> None:
    report = CopyReport(6)
    report.judge({0: ["a", "b", "c"], 1: ["x", "y", "z"]}, {0: ["a", "c", "b", "b"], 1: ["x", "a"]})
    assert (report.lost, report.duplicates, report.disorder, report.strange) == (2, 1, 1, 1)
    assert report.faults() == ["2 lost", "1 duplicates", "1 disorder", "1 strange"]
