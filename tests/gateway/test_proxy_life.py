"""The table of a generation's life, tested like h11's: push events, compare states and actions."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.proxy import life as life_module
from ballast_gateway.proxy.life import ENDS, TABLE, Action, Event, ImpossibleEvent, Life, State, diagram

DOCS = Path(__file__).parents[2] / "docs" / "gateway" / "proxy.md"
LIVE = [state for state in State if state is not State.ENDED]


def lived(*events: Event) -> tuple[State, list[Action]]:
    """Where these events lead from the beginning, and everything that is done on the way."""
    life = Life()
    actions = [action for event in events for action in life.on(event)]
    return life.state, actions


ROADS: dict[str, tuple[list[Event], State, list[Action]]] = {
    "one endpoint": (
        [Event.DISPATCHED, Event.BEGUN, Event.TOKEN, Event.END],
        State.ENDED,
        [Action.BEGIN_ANSWER, Action.REPORT_TOKEN, Action.FINISH],
    ),
    "prefill, hand-off, decode": (
        [Event.DISPATCHED_SPLIT, Event.PREFILLED, Event.HANDED_OFF, Event.BEGUN],
        State.FLOWING,
        [Action.REPORT_PREFILLED, Action.BEGIN_ANSWER],
    ),
    "a prompt in two parts": (
        [Event.DISPATCHED_CUT, Event.PART_COMPUTED, Event.HANDED_OFF, Event.BEGUN],
        State.FLOWING,
        [Action.REPORT_PART, Action.BEGIN_ANSWER],
    ),
    "several choices are not split": (
        [Event.DISPATCHED_UNSPLITTABLE, Event.HANDED_OFF, Event.BEGUN_UNHELD, Event.END],
        State.ENDED,
        [Action.REPORT_PREFILLED, Action.BEGIN_ANSWER, Action.FINISH],
    ),
    "a retry before the first byte": (
        [Event.DISPATCHED_SPLIT, Event.ENGINE_FAILED, Event.DISPATCHED, Event.ENGINE_FAILED, Event.REJECTED],
        State.ENDED,
        [Action.RETRY, Action.RETRY, Action.REFUSE_REQUEST],
    ),
    "the prompt is refused": (
        [Event.DISPATCHED_SPLIT, Event.ENGINE_FAILED, Event.REJECTED],
        State.ENDED,
        [Action.RETRY, Action.REFUSE_REQUEST],
    ),
    "a move": (
        [Event.DISPATCHED, Event.BEGUN, Event.MOVE_ORDERED, Event.WARMED_UP, Event.CUT_REACHED, Event.TOKEN],
        State.FLOWING,
        [
            *(Action.BEGIN_ANSWER, Action.WARM_UP, Action.AWAIT_CUT, Action.FOLLOW_TARGET, Action.LIMIT_TARGET),
            *(Action.REPORT_MOVED, Action.REPORT_TOKEN),
        ],
    ),
    "a move there and back": (
        [Event.DISPATCHED, Event.BEGUN, Event.MOVE_ORDERED, Event.WARMED_UP, Event.CUT_REACHED, Event.ENGINE_FAILED],
        State.FLOWING,
        [
            *(Action.BEGIN_ANSWER, Action.WARM_UP, Action.AWAIT_CUT, Action.FOLLOW_TARGET, Action.LIMIT_TARGET),
            *(Action.FOLLOW_SOURCE, Action.GIVE_MOVE_UP),
        ],
    ),
    "the source dies while a target is warm: no way back, so no limit": (
        [Event.DISPATCHED, Event.BEGUN, Event.MOVE_ORDERED, Event.WARMED_UP, Event.ENGINE_FAILED_UNRESCUED],
        State.ESCAPING,
        [Action.BEGIN_ANSWER, Action.WARM_UP, Action.AWAIT_CUT, Action.FOLLOW_TARGET],
    ),
    "the source dies while a target is warm, and then the target": (
        [
            *(Event.DISPATCHED, Event.BEGUN, Event.MOVE_ORDERED, Event.WARMED_UP, Event.ENGINE_FAILED),
            *(Event.ENGINE_FAILED, Event.DISPATCHED),
        ],
        State.FLOWING,
        [
            *(Action.BEGIN_ANSWER, Action.WARM_UP, Action.AWAIT_CUT, Action.FOLLOW_TARGET),
            *(Action.DROP_MOVE, Action.RESCUE),
        ],
    ),
    "a rescue through another prefill": (
        [
            *(Event.DISPATCHED, Event.BEGUN, Event.ENGINE_FAILED, Event.DISPATCHED_SPLIT, Event.PREFILLED),
            *(Event.HANDED_OFF, Event.TOKEN),
        ],
        State.FLOWING,
        [Action.BEGIN_ANSWER, Action.RESCUE, Action.REPORT_PREFILLED, Action.REPORT_TOKEN],
    ),
    "a begun stream is not cut again": (
        [Event.DISPATCHED, Event.BEGUN, Event.ENGINE_FAILED, Event.DISPATCHED_CUT, Event.HANDED_OFF],
        State.FLOWING,
        [Action.BEGIN_ANSWER, Action.RESCUE, Action.REPORT_NO_PART],
    ),
    "a rescue that finds no engine": (
        [Event.DISPATCHED, Event.BEGUN, Event.ENGINE_FAILED, Event.REJECTED],
        State.ENDED,
        [Action.BEGIN_ANSWER, Action.RESCUE, Action.BREAK],
    ),
    "reasoning ties a stream to its engine": (
        [Event.DISPATCHED, Event.BEGUN, Event.MOVE_ORDERED, Event.TIED, Event.ENGINE_BROKE],
        State.ENDED,
        [Action.BEGIN_ANSWER, Action.WARM_UP, Action.GIVE_MOVE_UP, Action.BREAK],
    ),
    "one move at a time": (
        [Event.DISPATCHED, Event.BEGUN, Event.MOVE_ORDERED, Event.MOVE_ORDERED],
        State.WARMING,
        [Action.BEGIN_ANSWER, Action.WARM_UP, Action.REFUSE_MOVE],
    ),
}


@pytest.mark.parametrize(("events", "state", "actions"), ROADS.values(), ids=ROADS)
def test_roads(events: list[Event], state: State, actions: list[Action]) -> None:
    assert lived(*events) == (state, actions)


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)), ids=lambda each: each.value)
def test_every_event_in_every_state_has_a_row_or_raises(state: State, event: Event) -> None:
    """An impossible event changes nothing."""
    life = Life()
    life.state = state
    step = TABLE[state].get(event)
    if step is None:
        with pytest.raises(ImpossibleEvent, match=state.value):
            life.on(event)
        assert life.state is state
    else:
        assert life.on(event) == step.actions
        assert life.state is step.state


def reached(start: Iterable[State]) -> set[State]:
    found, pending = set(start), list(start)
    while pending:
        following = {step.state for step in TABLE[pending.pop()].values()} - found
        found |= following
        pending += following
    return found


def test_every_state_is_reached_and_reaches_the_end() -> None:
    """The end is final; every event and every action is used."""
    assert reached([State.PLACING]) == set(State)
    assert all(State.ENDED in reached([state]) for state in State)
    assert not TABLE[State.ENDED]
    steps = [step for rows in TABLE.values() for step in rows.values()]
    assert {event for rows in TABLE.values() for event in rows} == set(Event)
    assert {action for step in steps for action in step.actions} == set(Action)


def test_a_request_ends_once_and_with_its_last_transition() -> None:
    for rows in TABLE.values():
        for step in rows.values():
            assert len(ENDS.intersection(step.actions)) == (step.state is State.ENDED)


def test_before_the_first_byte_any_engine_may_start_anew() -> None:
    """Errors have a status there, and are never an interrupted stream; the other half never answers with a status."""
    placed = {State.PLACING, State.FIRST_PART, State.PREFILLING, State.HANDING_OFF, State.OPENING}
    for state, rows in TABLE.items():
        actions = {action for step in rows.values() for action in step.actions}
        whole = {Action.REFUSE_REQUEST, Action.PASS_ON, Action.RETRY, Action.BEGIN_ANSWER}
        assert actions.isdisjoint({Action.BREAK, Action.RESCUE, Action.FINISH} if state in placed else whole)


def test_only_what_nobody_was_sent_is_forgotten() -> None:
    """For whole answers alone the way leads back."""
    placed = {State.PLACING, State.OPENING}
    for state, rows in TABLE.items():
        for event, step in rows.items():
            forgets = not {Action.START_OVER, Action.ASK_WHOLE}.isdisjoint(step.actions)
            assert forgets == (event in FOR_WHOLE)
            assert (
                forgets
                or state in placed
                or step.state not in placed
                or state is State.HANDING_OFF
                or (state in (State.FIRST_PART, State.PREFILLING))
            )


MOVES = {State.WARMING, State.WARM, State.CROSSING, State.ESCAPING}
MOVE_ENDS = {Action.REPORT_MOVED, Action.GIVE_MOVE_UP, Action.DROP_MOVE}


@given(st.data())
def test_any_possible_life(data: st.DataObject) -> None:
    """Whatever happens, in any order that can be.

    1. A request has exactly one end, and nothing is done after it.
    2. An order to move gets exactly one answer, and a move is under way in exactly the four states for it.
    3. At every instant one engine at most owns the stream; it is left before another one is followed.
    4. Status and headers are sent once, before any token is reported (of a whole answer they are kept until its end).
    5. Each dispatch but the last is reported as failed, once.
    """
    life, ends, orders, answers, heads, dispatches, failures = Life(), 0, 0, 0, 0, 0, 0
    owner: str | None = None
    while life.state is not State.ENDED:
        was = life.state
        event = data.draw(st.sampled_from(list(TABLE[was])))
        actions = life.on(event)
        assert ends == 0
        ends += len(ENDS.intersection(actions))
        orders += event in (Event.MOVE_ORDERED, Event.MOVE_UNFIT)
        answers += len((MOVE_ENDS | {Action.REFUSE_MOVE}).intersection(actions))
        assert orders - answers == (life.state in MOVES)
        owner = _owner(owner, was, event, actions)
        assert (owner is not None) == (life.state in FOLLOWED)
        assert Action.REPORT_TOKEN not in actions or heads == 1
        heads = 0 if event in FOR_WHOLE else heads + actions.count(Action.BEGIN_ANSWER)
        assert heads <= 1
        dispatches += event in DISPATCHES and was is not State.MEASURING
        failures += len({Action.RETRY, Action.RESCUE}.intersection(actions))
        assert 0 <= dispatches - failures <= 1
    assert ends == 1
    assert orders == answers


FOLLOWED = {State.OPENING, State.FLOWING, State.PASSING, *MOVES}
DISPATCHES = {each for each in Event if each.value.startswith("dispatched")}
FOR_WHOLE = {Event.ENGINE_FAILED_ANEW, Event.UNFIT}
LEAVES = {Event.UNFIT, Event.ENGINE_BROKE, Event.CUT_REACHED} | {
    each for each in Event if each.value.startswith("engine failed")
}
OVER = {Event.END, Event.ANSWERED, Event.CLIENT_GONE, Event.DEADLINE_PASSED, Event.SHUT_DOWN}


def _owner(owner: str | None, was: State, event: Event, actions: tuple[Action, ...]) -> str | None:
    """The engine whose bytes the client gets after this event."""
    if event in LEAVES | OVER and was in FOLLOWED:
        owner = None
    follows = [action for action in actions if action in (Action.FOLLOW_TARGET, Action.FOLLOW_SOURCE)]
    if follows or event in (Event.HANDED_OFF, Event.DISPATCHED, Event.UNFIT):
        assert owner is None
        assert len(follows) <= 1
        owner = follows[0].value if follows else "the decode endpoint"
    return owner


def test_the_table_does_no_io() -> None:
    """It imports what describes values, and nothing of ours."""
    tree = ast.parse(Path(life_module.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    assert imported == {"__future__", "collections.abc", "dataclasses", "enum", "typing"}


def test_the_docs_show_this_table() -> None:
    """`docs/gateway/proxy.md` has the diagram of `diagram()`."""
    assert f"```mermaid\n{diagram()}\n```" in DOCS.read_text(encoding="utf-8")
