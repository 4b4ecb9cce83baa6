# SPDX-License-Identifier: Apache-2.0
"""Replacements for statements in tests of other clients that use private attributes.

With `--public`, tools/peer_client_tests.py replaces these statements in its copy of the tests by public calls, or
leaves them out if there is no public counterpart. The tests can then check a facade as well. The same tests run with
the project's own client as the control.
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
            # It checks the number of Fetch requests that aiokafka sends.
            "with self.count_fetch_requests(consumer, 1):": "if True:",
            "self.assertIn(tp, consumer._fetcher._records)": NOTHING,
            "self.assertNotIn(tp, consumer._fetcher._records)": NOTHING,
            "self.assertNotIn(tp2, consumer._fetcher._records)": NOTHING,
            # It checks that the rebalance waits for the listener. The test also counts the calls of the listener.
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
    """Replace the statements in a copy of a client's tests. Raise SystemExit if one is missing."""
    for name, statements in PUBLIC.get(client, {}).items():
        text = (tests / name).read_text("utf-8")
        for old, new in statements.items():
            if old not in text:
                raise SystemExit(f"{name} of {client} has no statement {old!r}: check tools/peer_public.py")
            text = text.replace(old, new)
        (tests / name).write_text(text, "utf-8")
