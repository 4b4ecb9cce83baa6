# SPDX-License-Identifier: Apache-2.0
"""Tests of other clients whose statements on private attributes have a public counterpart, or none and are left out.

With `--public`, tools/peer_client_tests.py replaces these statements in its copy of the tests. What a test checks with
public calls then counts for a facade, too. The same tests run with the own client as the control.
"""

from __future__ import annotations

from pathlib import Path

#: Replaced by a statement that does nothing.
NOTHING = "pass"
#: Client -> file -> statement -> what replaces it.
PUBLIC: dict[str, dict[str, dict[str, str]]] = {
    "aiokafka": {
        "test_consumer.py": {
            "assert consumer._fetcher is not None": "assert not consumer._closed",
            # How many Fetch requests aiokafka sends.
            "with self.count_fetch_requests(consumer, 1):": "if True:",
            "self.assertIn(tp, consumer._fetcher._records)": NOTHING,
            "self.assertNotIn(tp, consumer._fetcher._records)": NOTHING,
            "self.assertNotIn(tp2, consumer._fetcher._records)": NOTHING,
            # That the rebalance waits for the listener: the test also counts its calls.
            "self.consumer._coordinator._rejoin_needed_fut.done()": "rejoin",
            "main_self.assertTrue(\n                        rejoin\n                    )": NOTHING,
            "main_self.assertFalse(\n                        rejoin\n                    )": NOTHING,
            'assert consumer1._group_instance_id == "consumer_1_static_group_member"': NOTHING,
            'assert consumer2._group_instance_id == "consumer_2_static_group_member"': NOTHING,
            "await consumer2._subscription.wait_for_assignment()": "await _wait_mock_count(listener2, 1)",
        },
        "test_producer.py": {
            "assert producer._sender._sender_task is not None": "assert not producer._closed",
            "self.assertEqual(producer._sender._acks, -1)": NOTHING,
            "self.assertIsNotNone(producer._txn_manager)": NOTHING,
            "send_mock.side_effect = producer._sender._send_produce_req": NOTHING,
            "producer._sender._send_produce_req = send_mock": NOTHING,
        },
    },
}


def make_public(client: str, tests: Path) -> None:
    """Replace the statements in a copy of a client's tests. Raise SystemExit if one is not there."""
    for name, statements in PUBLIC.get(client, {}).items():
        text = (tests / name).read_text("utf-8")
        for old, new in statements.items():
            if old not in text:
                raise SystemExit(f"{name} of {client} has no statement {old!r}: check tools/peer_public.py")
            text = text.replace(old, new)
        (tests / name).write_text(text, "utf-8")
