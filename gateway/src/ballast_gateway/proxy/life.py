"""The life of a generation as a table: what each event does in each state. No I/O, no clock, no event loop.

The holder of the client's stream feeds events in the order in which they happen and carries out the actions that come
back, in their order. The table does not know where the Director is: its orders (`DISPATCHED*`, `HANDED_OFF`,
`REJECTED`, `MOVE_*`) are events, and what it has to learn are actions, whether a call away or a network away.

One table covers the legs and the held stream alike, because they are not separate: an engine's failure leads from the
stream back to the Director, and what a leg's end means depends on what the client has been sent. The states therefore
come in two halves: before the first byte (`PLACING` to `OPENING`), when any engine may start anew and errors have a
status, and after it (`FLOWING` to `REJOINING`), when the tokens that were sent have to be carried over.

A state also names what its holder waits for (`State`); entering it starts that work. A transition without a row is
impossible: `Life.on` raises, and the state stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class _Name(Enum):
    """Members are compared by identity, so they are hashed by it: `Enum` hashes their names anew each time."""

    __hash__ = object.__hash__


class State(_Name):
    """What the holder waits for."""

    PLACING = "placing"
    """The Director's dispatch."""
    FIRST_PART = "first part"
    """The KV of the prompt's first segment."""
    PREFILLING = "prefilling"
    """The answer of the prefill endpoint."""
    HANDING_OFF = "handing off"
    """The Director's decode endpoint."""
    OPENING = "opening"
    """The first bytes of the decode endpoint; the client has been sent nothing yet."""
    FLOWING = "flowing"
    """The engine's events; the client's stream has begun, and another engine could go on with it."""
    PASSING = "passing"
    """The engine's bytes; the client's stream has begun, and no other engine could go on with it."""
    WARMING = "warming"
    """As FLOWING, while a target computes the tokens so far."""
    WARM = "warm"
    """As FLOWING, until an event at which the stream may be cut."""
    CROSSING = "crossing"
    """The target's first token; the source has been left."""
    ESCAPING = "escaping"
    """The same; the source has failed, so there is no way back to it."""
    REPLACING = "replacing"
    """The Director's next dispatch; the engine of a begun stream has failed."""
    MEASURING = "measuring"
    """An engine's word on where the text so far ends among its last tokens."""
    REFILLING = "refilling"
    """The answer of the prefill endpoint about prompt and output so far."""
    REJOINING = "rejoining"
    """The Director's decode endpoint for a begun stream."""
    ENDED = "ended"
    """Nothing."""


class Event(_Name):
    """What happens. The holder picks between similar events by the tokens it has, never by the state."""

    DISPATCHED = "dispatched"
    """The Director names one endpoint."""
    DISPATCHED_SPLIT = "dispatched, split"
    """It names a prefill and a decode endpoint."""
    DISPATCHED_UNSPLITTABLE = "dispatched, unsplittable"
    """The same, for a request of several choices, which has no KV handle: no prefill leg."""
    DISPATCHED_CUT = "dispatched, cut"
    """It cuts the prompt into segments."""
    DISPATCHED_UNSURE = "dispatched, unsure"
    """It names endpoints, and it is not known yet where among the last tokens the text so far ends."""
    REJECTED = "rejected"
    """It gives no endpoint."""
    PART_COMPUTED = "part computed"
    """The first segment has reached its cut."""
    PART_SKIPPED = "part skipped"
    """The next engine has to compute the whole prompt."""
    PREFILLED = "prefilled"
    """The prefill endpoint has answered."""
    HANDED_OFF = "handed off"
    """The Director names the decode endpoint."""
    ANSWERED = "answered"
    """A whole answer for the client: a result that does not stream. Only before the first byte."""
    BEGUN = "begun"
    """The first bytes of a stream whose tokens are kept."""
    BEGUN_UNHELD = "begun, unheld"
    """The first bytes of a stream whose tokens are not known."""
    TOKEN = "token"
    """The first token of a leg."""
    TIED = "tied"
    """The engine keeps state beside the tokens, or gives none: no other one could go on any more."""
    END = "end"
    """The engine's stream came to its end."""
    ENGINE_FAILED = "engine failed"
    """No answer, a broken one, silence or an error; another engine could go on from the tokens so far."""
    ENGINE_FAILED_UNSURE = "engine failed, unsure"
    """The same, once an engine has said where among the last tokens the text so far ends."""
    ENGINE_FAILED_UNRESCUED = "engine failed, unrescued"
    """The same, where settings leave streams with their engines."""
    ENGINE_FAILED_ANEW = "engine failed, anew"
    """The same, where nothing was sent of what has come, and none of it is carried over."""
    ENGINE_BROKE = "engine broke"
    """The same, but no other engine could go on."""
    UNFIT = "unfit"
    """No whole answer can be put together from the stream that it comes as."""
    MOVE_ORDERED = "move ordered"
    """The Director orders a move, and the stream's tokens can be carried over."""
    MOVE_UNFIT = "move unfit"
    """The same, but its tokens cannot be carried over."""
    WARMED_UP = "warmed up"
    """The target has computed the tokens that it was given."""
    WARM_UP_FAILED = "warm-up failed"
    """It has not."""
    CUT_REACHED = "cut reached"
    """An event behind which the text may be cut."""
    PATIENCE_OVER = "patience over"
    """The timer of a warm target: no such event came."""
    SHUT_DOWN = "gateway ends"
    """Its time to drain is over."""
    CLIENT_GONE = "client gone"
    """The client has closed its connection."""
    DEADLINE_PASSED = "deadline passed"
    """The request has taken as long as it may."""


class Action(_Name):
    """What the holder does on a transition, at once."""

    RETRY = "report the failed leg"
    RESCUE = "count a rescue, report the failed leg"
    START_OVER = "forget what has come"
    ASK_WHOLE = "have the engine give a whole answer"
    REPORT_PREFILLED = "report the prefill"
    REPORT_PART = "report the segment"
    REPORT_NO_PART = "report the segment as skipped"
    REPORT_TOKEN = "report the token"
    REPORT_MOVED = "report the move"
    BEGIN_ANSWER = "send status and headers"
    REFUSE_REQUEST = "answer with the error, or as the engines did"
    PASS_ON = "answer with the engine's answer"
    FINISH = "end the stream, report the end"
    BREAK = "break the stream off, report the failure"
    CANCEL = "report that the client is gone"
    TELL_END = "tell the client that the gateway ends"
    EXPIRE = "say that the deadline has passed, report the end"
    WARM_UP = "ask the target to warm up"
    AWAIT_CUT = "start the timer"
    FOLLOW_TARGET = "follow the target"
    LIMIT_TARGET = "set the limit for its first token"
    FOLLOW_SOURCE = "follow the source again"
    GIVE_MOVE_UP = "report the failed move"
    REFUSE_MOVE = "report the order as failed"
    DROP_MOVE = "record how the move ended"


ENDS: Final = frozenset(
    {Action.REFUSE_REQUEST, Action.PASS_ON, Action.FINISH, Action.BREAK, Action.CANCEL, Action.EXPIRE, Action.TELL_END}
)
"""The ends of a request: one of them comes, once, with the transition to ENDED."""


@dataclass(frozen=True, slots=True)
class Step:
    """One cell of the table."""

    state: State
    actions: tuple[Action, ...] = ()


class ImpossibleEvent(Exception):
    """An event that cannot happen in this state: a fault of the holder."""


Rows = Mapping[Event, Step]

_PLACED: Final[dict[State, dict[Event, Step]]] = {
    State.PLACING: {
        Event.DISPATCHED: Step(State.OPENING),
        Event.DISPATCHED_SPLIT: Step(State.PREFILLING),
        Event.DISPATCHED_UNSPLITTABLE: Step(State.HANDING_OFF, (Action.REPORT_PREFILLED,)),
        Event.DISPATCHED_CUT: Step(State.FIRST_PART),
        Event.REJECTED: Step(State.ENDED, (Action.REFUSE_REQUEST,)),
    },
    State.FIRST_PART: {
        Event.PART_COMPUTED: Step(State.HANDING_OFF, (Action.REPORT_PART,)),
        Event.PART_SKIPPED: Step(State.HANDING_OFF, (Action.REPORT_NO_PART,)),
        Event.ENGINE_FAILED: Step(State.PLACING, (Action.RETRY,)),
    },
    State.PREFILLING: {
        Event.PREFILLED: Step(State.HANDING_OFF, (Action.REPORT_PREFILLED,)),
        Event.ENGINE_FAILED: Step(State.PLACING, (Action.RETRY,)),
    },
    State.HANDING_OFF: {
        Event.HANDED_OFF: Step(State.OPENING),
    },
    State.OPENING: {
        Event.BEGUN: Step(State.FLOWING, (Action.BEGIN_ANSWER,)),
        Event.BEGUN_UNHELD: Step(State.PASSING, (Action.BEGIN_ANSWER,)),
        Event.ANSWERED: Step(State.ENDED, (Action.PASS_ON,)),
        Event.ENGINE_FAILED: Step(State.PLACING, (Action.RETRY,)),
        Event.UNFIT: Step(State.OPENING, (Action.ASK_WHOLE,)),
    },
}
"""Before the first byte."""

_BEGUN: Final[dict[State, dict[Event, Step]]] = {
    State.FLOWING: {
        Event.TOKEN: Step(State.FLOWING, (Action.REPORT_TOKEN,)),
        Event.TIED: Step(State.PASSING),
        Event.END: Step(State.ENDED, (Action.FINISH,)),
        Event.ENGINE_FAILED: Step(State.REPLACING, (Action.RESCUE,)),
        Event.ENGINE_FAILED_UNSURE: Step(State.REPLACING, (Action.RESCUE,)),
        Event.ENGINE_FAILED_UNRESCUED: Step(State.ENDED, (Action.BREAK,)),
        Event.ENGINE_FAILED_ANEW: Step(State.PLACING, (Action.START_OVER, Action.RESCUE)),
        Event.ENGINE_BROKE: Step(State.ENDED, (Action.BREAK,)),
        Event.UNFIT: Step(State.OPENING, (Action.ASK_WHOLE,)),
        Event.MOVE_ORDERED: Step(State.WARMING, (Action.WARM_UP,)),
    },
    State.PASSING: {
        Event.TOKEN: Step(State.PASSING, (Action.REPORT_TOKEN,)),
        Event.END: Step(State.ENDED, (Action.FINISH,)),
        Event.ENGINE_BROKE: Step(State.ENDED, (Action.BREAK,)),
    },
    State.WARMING: {
        Event.TOKEN: Step(State.WARMING, (Action.REPORT_TOKEN,)),
        Event.TIED: Step(State.PASSING, (Action.GIVE_MOVE_UP,)),
        Event.END: Step(State.ENDED, (Action.FINISH, Action.DROP_MOVE)),
        Event.ENGINE_FAILED: Step(State.REPLACING, (Action.DROP_MOVE, Action.RESCUE)),
        Event.ENGINE_FAILED_UNSURE: Step(State.REPLACING, (Action.DROP_MOVE, Action.RESCUE)),
        Event.ENGINE_FAILED_UNRESCUED: Step(State.ENDED, (Action.BREAK, Action.DROP_MOVE)),
        Event.ENGINE_FAILED_ANEW: Step(State.PLACING, (Action.DROP_MOVE, Action.START_OVER, Action.RESCUE)),
        Event.UNFIT: Step(State.OPENING, (Action.GIVE_MOVE_UP, Action.ASK_WHOLE)),
        Event.ENGINE_BROKE: Step(State.ENDED, (Action.BREAK, Action.DROP_MOVE)),
        Event.WARMED_UP: Step(State.WARM, (Action.AWAIT_CUT,)),
        Event.WARM_UP_FAILED: Step(State.FLOWING, (Action.GIVE_MOVE_UP,)),
    },
    State.WARM: {
        Event.TOKEN: Step(State.WARM, (Action.REPORT_TOKEN,)),
        Event.TIED: Step(State.PASSING, (Action.GIVE_MOVE_UP,)),
        Event.END: Step(State.ENDED, (Action.FINISH, Action.DROP_MOVE)),
        Event.ENGINE_FAILED: Step(State.ESCAPING, (Action.FOLLOW_TARGET,)),
        Event.ENGINE_FAILED_UNSURE: Step(State.REPLACING, (Action.DROP_MOVE, Action.RESCUE)),
        Event.ENGINE_FAILED_UNRESCUED: Step(State.ESCAPING, (Action.FOLLOW_TARGET,)),
        Event.ENGINE_FAILED_ANEW: Step(State.PLACING, (Action.DROP_MOVE, Action.START_OVER, Action.RESCUE)),
        Event.UNFIT: Step(State.OPENING, (Action.GIVE_MOVE_UP, Action.ASK_WHOLE)),
        Event.ENGINE_BROKE: Step(State.ENDED, (Action.BREAK, Action.DROP_MOVE)),
        Event.CUT_REACHED: Step(State.CROSSING, (Action.FOLLOW_TARGET, Action.LIMIT_TARGET)),
        Event.PATIENCE_OVER: Step(State.FLOWING, (Action.GIVE_MOVE_UP,)),
    },
    State.CROSSING: {
        Event.TOKEN: Step(State.FLOWING, (Action.REPORT_MOVED, Action.REPORT_TOKEN)),
        Event.END: Step(State.ENDED, (Action.FINISH, Action.DROP_MOVE)),
        Event.ENGINE_FAILED: Step(State.FLOWING, (Action.FOLLOW_SOURCE, Action.GIVE_MOVE_UP)),
        Event.ENGINE_FAILED_ANEW: Step(State.PLACING, (Action.DROP_MOVE, Action.START_OVER, Action.RESCUE)),
        Event.ENGINE_BROKE: Step(State.FLOWING, (Action.FOLLOW_SOURCE, Action.GIVE_MOVE_UP)),
        Event.UNFIT: Step(State.OPENING, (Action.FOLLOW_SOURCE, Action.GIVE_MOVE_UP, Action.ASK_WHOLE)),
    },
    State.ESCAPING: {
        Event.TOKEN: Step(State.FLOWING, (Action.REPORT_MOVED, Action.REPORT_TOKEN)),
        Event.END: Step(State.ENDED, (Action.FINISH, Action.DROP_MOVE)),
        Event.ENGINE_FAILED: Step(State.REPLACING, (Action.DROP_MOVE, Action.RESCUE)),
        Event.ENGINE_FAILED_ANEW: Step(State.PLACING, (Action.DROP_MOVE, Action.START_OVER, Action.RESCUE)),
        Event.ENGINE_BROKE: Step(State.ENDED, (Action.BREAK, Action.DROP_MOVE)),
        Event.UNFIT: Step(State.OPENING, (Action.REPORT_MOVED, Action.ASK_WHOLE)),
    },
    State.REPLACING: {
        Event.DISPATCHED: Step(State.FLOWING),
        Event.DISPATCHED_SPLIT: Step(State.REFILLING),
        Event.DISPATCHED_CUT: Step(State.REJOINING, (Action.REPORT_NO_PART,)),
        Event.DISPATCHED_UNSURE: Step(State.MEASURING),
        Event.REJECTED: Step(State.ENDED, (Action.BREAK,)),
    },
    State.MEASURING: {
        Event.DISPATCHED: Step(State.FLOWING),
        Event.DISPATCHED_SPLIT: Step(State.REFILLING),
        Event.DISPATCHED_CUT: Step(State.REJOINING, (Action.REPORT_NO_PART,)),
        Event.ENGINE_FAILED: Step(State.REPLACING, (Action.RESCUE,)),
        Event.ENGINE_FAILED_ANEW: Step(State.PLACING, (Action.START_OVER, Action.RESCUE)),
        Event.ENGINE_BROKE: Step(State.ENDED, (Action.BREAK,)),
    },
    State.REFILLING: {
        Event.PREFILLED: Step(State.REJOINING, (Action.REPORT_PREFILLED,)),
        Event.ENGINE_FAILED: Step(State.REPLACING, (Action.RESCUE,)),
    },
    State.REJOINING: {
        Event.HANDED_OFF: Step(State.FLOWING),
    },
}
"""After the first byte."""

_ANYWHERE: Final = frozenset({Event.CLIENT_GONE, Event.DEADLINE_PASSED, Event.SHUT_DOWN})
CROSSING: Final = frozenset({State.CROSSING, State.ESCAPING})
"""The target is followed, and has given nothing yet."""
MOVING: Final = CROSSING | {State.WARMING, State.WARM}
"""A move is under way."""


def _whole_rows(state: State, rows: Rows) -> Rows:
    """The rows of a live state with those that all of them share: the client or the gateway may go, time passes, and
    orders may come too late."""
    dropped = (Action.DROP_MOVE,) if state in MOVING else ()
    gone, ends, expired = (
        Step(State.ENDED, (end, *dropped)) for end in (Action.CANCEL, Action.TELL_END, Action.EXPIRE)
    )
    refused = Step(state, (Action.REFUSE_MOVE,))
    shared = {Event.CLIENT_GONE: gone, Event.SHUT_DOWN: ends, Event.DEADLINE_PASSED: expired}
    return {**shared, Event.MOVE_UNFIT: refused, Event.MOVE_ORDERED: refused, **rows}


TABLE: Final[Mapping[State, Rows]] = {
    **{state: _whole_rows(state, rows) for state, rows in (_PLACED | _BEGUN).items()},
    State.ENDED: {},
}


class Life:
    """Where one generation is."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.PLACING

    def on(self, event: Event) -> tuple[Action, ...]:
        """Take an event; returns what to do, in this order. Raises `ImpossibleEvent` and stays where it is."""
        step = TABLE[self.state].get(event)
        if step is None:
            raise ImpossibleEvent(f"{event.value!r} while {self.state.value}")
        self.state = step.state
        return step.actions


def diagram() -> str:
    """The table in Mermaid's language: one arrow for each change of state, but for those that every state shares."""
    lines = ["stateDiagram-v2", f"    [*] --> {_name(State.PLACING)}"]
    for state, rows in TABLE.items():
        arrows: dict[State, list[str]] = {}
        for event, step in rows.items():
            if event not in _ANYWHERE and step.state is not state:
                arrows.setdefault(step.state, []).append(event.value)
        lines += [f"    {_name(state)} --> {_name(to)}: {'; '.join(events)}" for to, events in arrows.items()]
    return "\n".join([*lines, f"    {_name(State.ENDED)} --> [*]"])


def _name(state: State) -> str:
    return state.value.replace(" ", "_")
