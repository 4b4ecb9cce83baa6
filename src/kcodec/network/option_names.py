# SPDX-License-Identifier: Apache-2.0
"""Names of options in other clients, and the error for an option that a client does not have.

Options have the names of Kafka's Java clients with underscores. librdkafka has other names for some, and both have
options that kcodec does not have: `foreign_options.py` says what to use instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kcodec.options import counterparts

# difflib's ratio: "compresion_type" is 0.97 like "compression_type", "ssl_ca_location" 0.67 like "sasl_aws_region".
CLOSE = 0.8
#: Other clients take the topics where a consumer is constructed.
TOPICS = dict.fromkeys(("topic", "topics"), "; pass topics to subscribe(), send() or read_topic()")
#: Arguments of `Consumer.subscribe`, which are options of a session.
CALLBACKS = dict.fromkeys(
    ("on_assigned", "on_revoked", "on_lost"), "; pass on_assigned, on_revoked and on_lost to subscribe()"
)
#: Names for the brokers that no client has.
SERVERS = {"broker", "brokers", "host", "hosts", "server", "url"}
#: Options that an error names at most, for a name that has only some of their words.
MOST_NAMED = 3


def refuse_unknown(options: Mapping[str, object], known: Iterable[str], what: str) -> None:
    """Raise TypeError for the first of these options, none of which `what` has; say which option is meant, if any.

    Names with dots are those of Java's and librdkafka's configuration: the same with underscores are recognized.
    """
    known = sorted(known)
    for name in options:
        raise TypeError(f"{what} has no option {name!r}{meant_by(name, known)}")


def meant_by(given: str, known: list[str]) -> str:
    """Return the end of an error about an unknown option: the name that is meant, or what to use instead."""
    name = given.replace(".", "_").replace("-", "_")
    if name in known:
        return f"; option names have underscores: write {name}=..., or pass several as **{{{name!r}: ...}}"
    from kcodec.network.foreign_options import WITHOUT_COUNTERPART  # only where a name is wrong

    if name in WITHOUT_COUNTERPART:
        return f": {WITHOUT_COUNTERPART[name]}"
    ours = counterparts().get(name)
    if ours in known:
        return f"; its name in kcodec is {ours!r}"
    if name in TOPICS and not TOPICS.keys() & set(known):  # a session has the option topics
        return TOPICS[name]
    if name in CALLBACKS:
        return CALLBACKS[name]
    import difflib  # only where a name is wrong

    near = difflib.get_close_matches(name, known, n=1, cutoff=CLOSE)
    if not near:
        longer = [option for option in known if f"_{name}_" in f"_{option}_"]
        near = sorted(longer, key=lambda option: (not option.startswith(name), len(option)))[:MOST_NAMED]
        near = near or [option for option in known if f"_{option}_" in f"_{name}_"]
    if not near and name in SERVERS:
        near = ["bootstrap_servers"]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def refuse_positional(given: tuple[Any, ...], what: str) -> None:
    """Raise TypeError if a client is constructed with positional arguments, as with a dict of librdkafka's names."""
    if not given:
        return
    if isinstance(given[0], Mapping):
        names = [str(name).replace(".", "_") for name in given[0]]
        known = counterparts()
        ours = [known.get(name, name) for name in names]
        example = ", ".join(f"{name}=..." for name in ours[:3]) or "bootstrap_servers=..."
        raise TypeError(
            f"{what} takes its options as keyword arguments, not as a dict: {what}({example}), or {what}(**options) "
            "with underscores in the names"
        )
    topics = "; pass topics to subscribe()" if what == "Consumer" else ""
    raise TypeError(
        f"{what} takes its options as keyword arguments, got a positional argument of type {type(given[0]).__name__}: "
        f'{what}(bootstrap_servers="localhost:9092"){topics}'
    )
