# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/tasks/, and the sizes of the examples of other clients that do the same tasks."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

TASKS = Path(__file__).resolve().parent.parent.parent / "examples" / "tasks"
#: Program -> the examples with its task, and the number of statements of each: in aiokafka at 672947af, and in
#: confluent-kafka-python at 8b1c7a61. Counted by `statements`.
ORIGINALS: dict[str, dict[str, int]] = {
    "aio_produce": {"aiokafka simple_produce.py": 13, "aiokafka idempotent_produce.py": 13},
    "aio_consume": {"aiokafka simple_consumer.py": 10},
    "aio_batches": {"aiokafka batch_produce.py": 26},
    "aio_transaction": {"aiokafka transactional_produce.py": 13},
    "aio_tls": {"aiokafka ssl_consume_produce.py": 20},
    "produce_lines": {"confluent-kafka producer.py": 21},
    "consume_group": {"confluent-kafka consumer.py": 55},
    "transaction_copy": {"confluent-kafka eos_transactions.py": 64},
    "sasl_produce": {"confluent-kafka sasl_producer.py": 46},
    "oauth_produce": {"confluent-kafka oauth_oidc_ccloud_producer.py": 46, "confluent-kafka oauth_producer.py": 48},
    "committed_offsets": {"confluent-kafka get_watermark_offsets.py": 27},
    "clients_as_blocks": {"confluent-kafka context_manager_example.py": 53},
    "json_produce": {"confluent-kafka json_producer.py": 53},
    "json_consume": {"confluent-kafka json_consumer.py": 37},
    "avro_produce": {"confluent-kafka avro_producer.py": 60},
    "avro_consume": {"confluent-kafka avro_consumer.py": 48},
}


class Enough(BaseException):
    """Raised when a program has printed what the test waits for. It ends the program, as Ctrl-C does."""


class Printed:
    """Replaces `print` in a program: it stores the lines, and ends the program after `most` of them."""

    def __init__(self, most: int | None = None) -> None:
        self.lines: list[str] = []
        self._most = most

    def __call__(self, *values: Any) -> None:
        self.lines.append(" ".join(map(str, values)))
        if len(self.lines) == self._most:
            raise Enough


def statements(source: str) -> int:
    """Count the statements of a program, without docstrings."""
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(ast.parse(source)))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def load(name: str, printed: Printed) -> ModuleType:
    """Import a program whose `print` is replaced by `printed`."""
    specification = importlib.util.spec_from_file_location(f"example_{name}", TASKS / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    module.print = printed  # type: ignore[attr-defined]
    return module
