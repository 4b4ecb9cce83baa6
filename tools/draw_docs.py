# SPDX-License-Identifier: Apache-2.0
"""Write the parts of docs/ that are generated from the code: messages, errors, options, states of a transaction.

Usage: python tools/draw_docs.py

A part is between the lines ``<!-- drawn: NAME -->`` and ``<!-- end -->``. `tests/project/test_docs.py` fails if a part
differs from what this program would write.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from draw_options import draw_table
from draw_performance import TABLES
from draw_states import draw_diagram, draw_meanings
from draw_states import draw_table as draw_state_table

from kcodec.client.admin import Admin
from kcodec.consumer.options import ConsumerConfig
from kcodec.network.options import ClientConfig
from kcodec.producer.options import ProducerConfig
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ERRORS
from kcodec.protocol.schema import Message, Request, Response
from kcodec.reading.options import ReadTopicConfig
from kcodec.security.option_names import SecurityConfig
from kcodec.session.options import SessionOwnConfig
from kcodec.testing.kafka import ApacheKafka

DOCS = Path(__file__).resolve().parent.parent / "docs"
SOURCE = DOCS.parent / "src" / "kcodec"
REGION = re.compile(r"(<!-- drawn: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def home(kind: type[Message]) -> str:
    """Return the last part of the name of the module that declares a message."""
    return kind.__module__.rpartition(".")[2]


def draw_apis() -> str:
    """Return every API with its key, the versions that kcodec supports, the first flexible one, and the module that
    declares it."""
    lines = ["| key | API | versions | flexible | declared in |", "| --- | --- | --- | --- | --- |"]
    for key, request in messages.all_requests().items():
        name = request.__name__.removesuffix("Request")
        lines.append(f"| {key} | {name} | {request.versions} | {request.flexible_versions} | `{home(request)}` |")
    return "\n".join(lines) + "\n"


# The clients that send a request, by the package that uses its class; the first matching package counts.
EVERY = "every client"
SENDERS = {
    "network": EVERY,
    "cluster/list_offsets": "consumer",
    "cluster/producer_states": "Admin",
    "cluster": EVERY,
    "producer": "producer",
    "transactions": "producer",
    "consumer": "consumer",
    "session": "consumer",
    "reading": "consumer",
    "admin": "Admin",
    "security": "logins",
    "cli": "command line",
}


def draw_api_users() -> str:
    """Return every API that the clients use, with the versions that they support and the clients that send it."""
    senders: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE).as_posix()
        sender = next((name for place, name in SENDERS.items() if inside.startswith(place)), None)
        for name in named(path) if sender else ():
            senders.setdefault(name, []).append(str(sender))
    lines = ["| key | API | versions | sent by |", "| --- | --- | --- | --- |"]
    for key, request in messages.all_requests().items():
        name = request.__name__
        users = [sender for sender in dict.fromkeys(SENDERS.values()) if sender in senders.get(name, ())]
        if EVERY in users:  # it contains the others
            users = [EVERY]
        if users:
            lines.append(f"| {key} | {name.removesuffix('Request')} | {request.versions} | {', '.join(users)} |")
    return "\n".join(lines) + "\n"


def named(path: Path) -> set[str]:
    """Return the names that the code of a module uses, alone or after a dot, without those only in strings and
    imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    bare = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bare | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def draw_others() -> str:
    """Return the messages that are neither requests nor responses."""
    lines = ["| message | record type | versions | flexible | declared in |", "| --- | --- | --- | --- | --- |"]
    for kind in messages.all_messages():
        if not issubclass(kind, Request | Response):
            number = getattr(kind, "api_key", "")
            versions = f"{kind.versions} | {kind.flexible_versions}"
            lines.append(f"| {kind.__name__} | {number} | {versions} | `{home(kind)}` |")
    return "\n".join(lines) + "\n"


def draw_errors() -> str:
    """Return every error code with its remedy."""
    lines = ["| code | name | remedy | what it says |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.code} | {row.name} | {row.remedy} | {row.text} |" for row in ERRORS.values() if row.code]
    return "\n".join(lines) + "\n"


def draw_options(made: type) -> str:
    """Return the parameters of a class's constructor: names, defaults, and descriptions from the docstring."""
    parameters = {name.strip("_"): one for name, one in inspect.signature(made).parameters.items()}
    _, _, rest = (inspect.getdoc(made) or "").partition("\n\n")
    rows: list[tuple[list[str], str]] = []
    for line in rest.splitlines():
        head = re.match(r"(\w+(?:, \w+)*):\s+", line)
        if head and set(head[1].split(", ")) <= set(parameters):
            rows.append((head[1].split(", "), line[head.end() :]))
        elif not line.strip():
            break
        else:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} {line.strip()}"
    missing = set(parameters) - {name for names, _ in rows for name in names}
    if missing:
        raise ValueError(f"the docstring of {made.__name__} says nothing of {', '.join(sorted(missing))}")
    lines = ["| option | default | what it does |", "| --- | --- | --- |"]
    for names, text in rows:
        defaults = ", ".join(shown_default(parameters[name]) for name in names)
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {defaults} | {text} |")
    return "\n".join(lines) + "\n"


def draw_methods(kind: type) -> str:
    """Return the public methods of a class, with the first sentence of each docstring."""
    lines = ["| method | what it does |", "| --- | --- |"]
    for name, method in sorted(inspect.getmembers(kind, inspect.isfunction)):
        summary = (inspect.getdoc(method) or "").partition("\n\n")[0].replace("\n", " ")
        if not name.startswith("_"):
            lines.append(f"| `{name}` | {summary} |")
    return "\n".join(lines) + "\n"


def shown_default(parameter: inspect.Parameter) -> str:
    """Return a default as a user types it; empty for an object without a useful repr."""
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return ""
    if parameter.default is inspect.Parameter.empty:
        return "needed"
    shown = repr(parameter.default)
    return "" if shown.startswith("<") else f"`{shown}`"


DRAWN: dict[str, Callable[[], str]] = {
    "apis": draw_apis,
    "api-users": draw_api_users,
    "other-messages": draw_others,
    "errors": draw_errors,
    "producer-options": lambda: draw_table(ProducerConfig),
    "client-options": lambda: draw_table(ClientConfig),
    "consumer-options": lambda: draw_table(ConsumerConfig),
    "session-options": lambda: draw_table(SessionOwnConfig),
    "read-topic-options": lambda: draw_table(ReadTopicConfig),
    "tls-options": lambda: draw_table(SecurityConfig, "ssl_"),
    "oauth-options": lambda: draw_table(SecurityConfig, "sasl_oauth"),
    "sasl-options": lambda: draw_table(SecurityConfig, "sasl_"),
    "admin-methods": lambda: draw_methods(Admin),
    "kafka-options": lambda: draw_options(ApacheKafka),
    "states": draw_state_table,
    "state-meanings": draw_meanings,
    "state-diagram": lambda: f"```mermaid\n{draw_diagram()}```\n",
    **TABLES,
}


def with_current_parts(text: str) -> str:
    """Return a page with all of its drawn parts updated."""
    return REGION.sub(lambda found: found[1] + DRAWN[found[2]]() + found[3], text)


def main() -> None:
    """Rewrite the pages that have drawn parts."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        current = with_current_parts(text)
        if current != text:
            page.write_text(current, encoding="utf-8")
            print(f"{page.relative_to(DOCS)}: drawn again")


if __name__ == "__main__":
    main()
