# SPDX-License-Identifier: Apache-2.0
"""The states of a transactional producer for the documentation, drawn from `kcodec.transactions.state`."""

from __future__ import annotations

import re

from kcodec.transactions.state import CALLS, RAISES_KEPT_ERROR, TRANSITIONS, Event, State

#: The name of a method in the description of an event.
CALL = re.compile(r"[a-z]+_[a-z_]+|^[a-z]+$")


def _outcome(state: State, event: Event) -> str:
    following = TRANSITIONS[state].get(event)
    if following is not None:
        return following.name
    return (
        "No change. The call raises the error that led to this state."
        if event in RAISES_KEPT_ERROR.get(state, ())
        else ""
    )


def draw_table() -> str:
    """Return the table in Markdown: a row for each event that a state allows."""
    lines = ["| state | event | next state |", "| --- | --- | --- |"]
    for state in State:
        outcomes = [(event, _outcome(state, event)) for event in Event]
        lines += [f"| {state.name} | {event.name} | {outcome} |" for event, outcome in outcomes if outcome]
    return "\n".join(lines) + "\n"


def draw_meanings() -> str:
    """Return what the states and events of `draw_table` mean, in Markdown: two tables."""
    tables = []
    for title, members in (("state", list(State)), ("event", list(Event))):
        lines = [f"| {title} | meaning |", "| --- | --- |"]
        for member in members:
            call = CALL.sub(r"`\g<0>`", member.value)
            meaning = f"The program calls {call}." if member in CALLS else member.value
            lines.append(f"| {member.name} | {meaning} |")
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def draw_diagram() -> str:
    """Return the table as a Mermaid state diagram. One arrow between two states has all of their events."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for state, transitions in TRANSITIONS.items():
        for event, following in transitions.items():
            if event is not Event.FATAL:
                arrows.setdefault((state, following), []).append(event.name)
    lines = ["stateDiagram-v2", f"    [*] --> {State.UNINITIALIZED.name}"]
    lines += [f"    {start.name} --> {end.name}: {', '.join(events)}" for (start, end), events in arrows.items()]
    lines.append(f"    note right of {State.FATAL_ERROR.name}: FATAL leads here from everywhere")
    return "\n".join(lines) + "\n"
