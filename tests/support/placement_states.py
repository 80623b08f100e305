"""States of a fleet in which placements are asked for costs: real inventory, ledger and beliefs, filled by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Observation, Request, RequestId, Role, Stage
from ballast_core.model.events import EndpointObserved
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.placement.protocol import Placement
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_core.state.view import View

HARDWARE = ("h20-qwen3-32b", "a100-qwen3-32b", "h20-qwen3-32b", "a100-qwen3-32b", "")
NOW_S = 1000.0
BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A request in flight. Pending while `generated` is None; `due_s` is when it is then expected at its endpoint."""

    at: int = 0
    prompt: int = 100
    generated: int | None = 0
    due_s: float = 0.0
    decoding_s: float = 1.0
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Decode endpoints d0, d1, ... with what they report, hold and have cached; `roles` turns them into other ones."""

    endpoints: int = 3
    role: Role = Role.DECODE
    hardware: Sequence[str] = ("h20-qwen3-32b",)
    flights: Sequence[Flight] = ()
    observed: Sequence[tuple[int, int]] = ()
    """(waiting, running) as reported."""
    queued: Sequence[int] = ()
    """Uncached prompt tokens that wait for prefill on each endpoint (flexible or prefill ones)."""
    cached_blocks: Sequence[int] = ()
    """Leading blocks of `PROMPT_BLOCKS` that each holds."""
    ended: Sequence[int] = field(default=())
    """Output lengths that the survival curve has seen."""
    profiles: Mapping[str, HardwareProfile] = field(default_factory=lambda: SHIPPED_PROFILES)
    """What `hardware` names."""


PROMPT_BLOCKS = tuple(range(1, 65))


def build(state: State) -> Director:
    """A Director in that state; it learns everything, whatever its own policy reads."""
    policy = LeastRequests()
    made = Director(DirectorSettings(prefill=policy, decode=policy, learn=Belief.ALL, profiles=state.profiles))
    slots = []
    for k in range(state.endpoints):
        name = f"{state.role[0]}{k}"
        endpoint = Endpoint(
            EndpointId(name), f"{name}:8000", state.role, profile=state.hardware[k % len(state.hardware)]
        )
        seen = None
        if k < len(state.observed):
            waiting, running = state.observed[k]
            seen = Observation(NOW_S - 0.1, running=running, waiting=waiting, kv_usage_ratio=0.5)
        made.on_event(EndpointObserved(endpoint, seen), NOW_S)
        slot = made.inventory.slot_of(endpoint.id)
        assert slot is not None
        slots.append(slot)
    made.beliefs.use_blocks_of(BLOCK)
    for slot, blocks in zip(slots, state.cached_blocks, strict=False):
        made.beliefs.prefixes.record(slot, PROMPT_BLOCKS[:blocks], NOW_S)
    # In order of time: what decodes has been prefilled before what is queued for prefill now.
    for number, flight in sorted(enumerate(state.flights), key=lambda item: item[1].generated is None):
        _fly(made, f"r{number}", slots[flight.at % len(slots)], flight)
    for number, tokens in enumerate(state.queued):
        if tokens:
            queued = made.ledger.open(Request(RequestId(f"q{number}"), tokens), NOW_S)
            made.ledger.assign(queued, None, slots[number], NOW_S)
    for tokens in state.ended:
        made.beliefs.lengths.ended(None, tokens, censored=False, now_s=NOW_S)
    made.beliefs.lengths.tables(NOW_S + 1.0)
    return made


def _fly(made: Director, name: str, slot: int, flight: Flight) -> None:
    request = Request(RequestId(name), flight.prompt, max_output_tokens=flight.limit)
    entry = made.ledger.open(request, NOW_S - flight.decoding_s)
    made.ledger.assign(entry, None, slot, NOW_S, prefill_s=flight.due_s)
    if flight.generated is not None:
        made.ledger.prefilled(entry, NOW_S - flight.decoding_s)
        if flight.generated:
            made.ledger.progressed(entry, 1, NOW_S - flight.decoding_s)
            made.ledger.progressed(entry, flight.generated, NOW_S)


def view(
    state: State | Director,
    request: Request | None = None,
    *,
    stage: Stage = Stage.DECODE,
    handoff_s: float | None = 0.5,
    order: Sequence[int] | None = None,
) -> View:
    """What a policy is shown of that state; `order` permutes the candidates."""
    made = build(state) if isinstance(state, State) else state
    candidates = made.inventory.candidates(stage)
    if order is not None:
        candidates = candidates.take(list(order))
    return made.placer.view(stage, request or ask(), candidates, NOW_S, handoff_s if stage is Stage.DECODE else None)


def ask(prompt_tokens: int = 1000, *, limit: int | None = None, name: str = "new", blocks: bool = True) -> Request:
    """The request to place; with `blocks` its prompt begins with `PROMPT_BLOCKS`."""
    hashes = PROMPT_BLOCKS[: prompt_tokens // BLOCK] if blocks else ()
    return Request(
        RequestId(name), prompt_tokens, max_output_tokens=limit, block_hashes=hashes, block_size=BLOCK if blocks else 0
    )


def costs(policy: Placement, state: State | Director, request: Request | None = None, **options: object) -> list[float]:
    """The policy's costs in that state."""
    request = request or ask()
    shown = view(state, request, **options)  # type: ignore[arg-type]
    given = policy.costs(shown, request)
    assert given.shape == (len(shown.endpoints),)
    assert given.dtype == np.float64
    return [float(cost) for cost in given]


flights = st.builds(
    Flight,
    at=st.integers(0, 4),
    prompt=st.integers(1, 20_000),
    generated=st.none() | st.integers(0, 3000),
    due_s=st.floats(0.0, 5.0),
    decoding_s=st.floats(0.05, 60.0),
    limit=st.none() | st.integers(1, 4000),
)
states = st.builds(
    State,
    endpoints=st.just(5),
    hardware=st.just(HARDWARE),
    role=st.sampled_from([Role.DECODE, Role.FLEXIBLE]),
    flights=st.lists(flights, max_size=25),
    observed=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), min_size=5, max_size=5),
    queued=st.lists(st.integers(0, 30_000), min_size=5, max_size=5),
    cached_blocks=st.lists(st.integers(0, 64), min_size=5, max_size=5),
    ended=st.lists(st.integers(1, 3000), max_size=40),
)
asks = st.builds(ask, st.integers(1, 20_000), limit=st.none() | st.integers(1, 5000), blocks=st.booleans())

__all__ = [
    "BLOCK",
    "NOW_S",
    "Flight",
    "State",
    "ask",
    "asks",
    "build",
    "costs",
    "flights",
    "states",
    "view",
]
