"""What Hypothesis draws for a Director: settings with every part of a suite, requests, scrapes, and any event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from types import UnionType
from typing import ClassVar, TypeAlias, get_args

import numpy as np
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.settings import DirectorSettings
from ballast_core.directing.watch import WatchSettings
from ballast_core.model import (
    Binding,
    Endpoint,
    EndpointId,
    Fault,
    Observation,
    Outcome,
    Request,
    RequestId,
    Role,
    Stage,
)
from ballast_core.model import events as ev
from ballast_core.model.kv_reports import BlocksRemoved, BlocksStored, CacheCleared, HistoryTold
from ballast_core.model.life_signs import LifeSign
from ballast_core.model.observations import Observations
from ballast_core.model.prompt_tokens import PromptTokens, packed
from ballast_core.model.served_models import ServedModels
from ballast_core.policies.admission import Bounded, Open
from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.partition.libra import Libra
from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.registry import QUEUE_ORDER, build, build_placement
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.policies.rescheduling.protocol import Decodes, Move, Round
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.core_builders import endpoint

NAMES = ("p0", "p1", "d0", "d1", "f0", "f1", "f2")
REQUESTS = tuple(f"r{k}" for k in range(6))
ADOPTED = ("gw/a", "gw/b", "r5")
"""Of other gateways; one has an id that a request of our own may have."""
FLEETS = (("p0", "d0", "d1"), ("f0", "f1", "f2"), ("p0", "p1", "d0", "f0", "f1"), ("p0", "f0", "f1"), ("d0",))


@dataclass(frozen=True, slots=True)
class Restless:
    """Moves what may move, to whichever endpoint takes it: many moves, whatever the loads."""

    type: ClassVar[str] = "restless"
    needs: ClassVar[Belief] = Belief.PROGRESS | Belief.LENGTHS | Belief.RATES
    interval_s: ClassVar[float] = 0.5
    min_stay_s: ClassVar[float] = 0.4
    predictor: ClassVar[str] = "hinted"

    def decide(self, decodes: Decodes) -> Round:
        """One move for each target at most."""
        moves: list[Move] = []
        left = np.flatnonzero(decodes.may_move).tolist()
        for target in np.flatnonzero(decodes.takes).tolist():
            full = decodes.free_decodes is not None and not decodes.free_decodes[target]
            request = next((one for one in left if decodes.endpoint[one] != target), None)
            if request is not None and not full:
                left.remove(request)
                moves.append(Move(request, target, 1.0))
        return Round(tuple(moves), np.zeros(len(decodes.takes)), 0.0, "no more may move")


_PARTITIONS = (
    Fixed(margin_tokens=0),
    Fixed(at="ratio", ratio=0.3, margin_tokens=0),
    Fixed(at="ratio", ratio=0.8),
    Libra(eps_s=0.0, ttft_slo_s=0.0),
    Libra(eps_s=0.0, segments=3),
)
_ORDERS = (
    None,
    *(build(QUEUE_ORDER, name) for name in QUEUE_ORDERS),
    *(build(QUEUE_ORDER, name, {"engine_priority": True}) for name in ("edf", "uniboost")),
)
_ARES = Ares(theta=0.0, interval_s=0.5, min_stay_s=1.0, max_moves_per_round=2, max_moves_under_way=2, payoff=1e-3)
_PLACEMENTS = tuple(build_placement(name) for name in ("least-requests", "ballast", "least-uncached-tokens", "libra"))

admissions = st.one_of(
    st.sampled_from([None, Open()]),
    st.builds(
        Bounded,
        max_prefill_requests=st.integers(1, 2),
        max_decode_requests=st.integers(1, 3),
        max_kv_ratio=st.sampled_from([1.0, 0.9]),
        max_waiting=st.sampled_from([4, 2, 0]),
        max_wait_s=st.sampled_from([0.4, 2.0]),
    ),
)
reschedulings = st.sampled_from([Restless(), None, _ARES])

settings = st.builds(
    DirectorSettings,
    prefill=st.sampled_from(_PLACEMENTS),
    decode=st.sampled_from(_PLACEMENTS),
    queue=st.sampled_from(_ORDERS),
    admission=admissions,
    partition=st.sampled_from([None, None, *_PARTITIONS]),
    rescheduling=reschedulings,
    binding=st.sampled_from(Binding),
    max_in_flight=st.sampled_from([None, None, None, 6]),
    max_retries=st.integers(0, 2),
    hold_s=st.sampled_from([3.0, 0.0]),
    fallbacks=st.sampled_from([0, 1, 3]),
    profiles=st.just({"h200": SHIPPED_PROFILES["h200-llama3-8b"]}),
    learn=st.sampled_from([Belief.NONE, Belief.ALL]),
    watch=st.sampled_from([None, WatchSettings(), WatchSettings(request_floor_s=1.0, opening_floor_s=0.3)]),
)

_KINDS_OF_REQUESTS = (
    Request(RequestId(""), 0),
    Request(RequestId(""), 0, expected_output_tokens=60.0),
    Request(RequestId(""), 0, max_output_tokens=40, traffic_class="chat", priority=1, ttft_objective_s=0.5),
    Request(RequestId(""), 0, block_hashes=(1, 2, 3), block_size=16, expected_output_tokens=300.0),
    Request(RequestId(""), 0, block_hashes=(1, 2, 3), block_size=16, tokens=PromptTokens.of([1] * 40)),
    Request(RequestId(""), 0, tokens=PromptTokens.of([1] * 20 + [2] * 20, model="l", cache_salt="s")),
    Request(RequestId(""), 0, block_hashes=(1, 2, 4), block_size=32, expected_thinking_tokens=30.0, movable=False),
    Request(RequestId(""), 0, subset=frozenset({"p0:8000", "d0:8000", "f0:8000", "f1:8000"})),
    Request(RequestId(""), 0, divisible=False, priority=-1),
    Request(RequestId(""), 0, model="m"),
    Request(RequestId(""), 0, model="l"),
)


def requests(names: st.SearchStrategy[str]) -> st.SearchStrategy[Request]:
    """Requests of each kind that policies tell apart, with prompts of 0 tokens and more."""
    return st.builds(
        lambda name, kind, tokens: replace(kind, id=RequestId(name), prompt_tokens=tokens),
        names,
        st.sampled_from(_KINDS_OF_REQUESTS),
        st.integers(0, 600),
    )


names = st.sampled_from(NAMES)
endpoint_ids = names.map(EndpointId)
endpoints = st.one_of(
    names.map(endpoint),
    names.map(endpoint),
    names.map(lambda name: replace(endpoint(name), profile="h200")),
    st.builds(endpoint, names, st.sampled_from(Role)),
    names.map(lambda name: replace(endpoint(name), address=f"{name}:9000")),
)
"""As they are mostly; also with another profile, role or address."""
observations = st.builds(
    Observation,
    st.sampled_from([0.0, 5.0, 50.0]),
    running=st.integers(0, 4),
    waiting=st.integers(0, 2),
    kv_usage_ratio=st.sampled_from([0.0, 0.5, 0.95]),
)
tokens = st.integers(0, 300)

_ids = st.sampled_from([*REQUESTS, *ADOPTED, "unknown"]).map(RequestId)
_anywhere = st.sampled_from([*NAMES, "nowhere"]).map(EndpointId)
_scrapes = st.lists(st.tuples(endpoints, observations), max_size=4, unique_by=lambda answer: answer[0].id)
_block_names = st.integers(0, 5)
_kv_reports = st.one_of(
    st.builds(
        lambda names, parent, size, adapter: BlocksStored(
            tuple(names), parent, packed([1] * size * len(names)), size, adapter=adapter
        ),
        st.lists(_block_names, max_size=3),
        st.none() | _block_names,
        st.sampled_from([4, 4, 4, 16]),
        st.sampled_from(["", "l"]),
    ),
    st.lists(_block_names, max_size=3).map(lambda names: BlocksRemoved(tuple(names))),
    st.sampled_from([CacheCleared(), HistoryTold()]),
)
_adapters = st.frozensets(st.sampled_from(["l", "k"]))
_models = st.builds(
    ServedModels,
    names=st.frozensets(st.sampled_from(["m", "l", "k"])),
    adapters=_adapters,
    running=_adapters,
    waiting=_adapters,
    most_running=st.integers(0, 2),
)
_signs = st.builds(
    LifeSign,
    endpoint_ids,
    st.sampled_from([0, 1, 3]),
    heard_s=st.sampled_from([-inf, 0.0, 2.0]),
    owing_since_s=st.sampled_from([-inf, 0.0, 1.0]),
    asked_s=st.sampled_from([inf, inf, 0.0]),
)
_reports = st.lists(st.tuples(st.floats(0.0, 1.0), _ids, tokens), max_size=15)

ANY: Mapping[type, st.SearchStrategy[ev.Event]] = {
    ev.RequestArrived: st.builds(ev.RequestArrived, requests(st.sampled_from(REQUESTS))),
    ev.RequestAdopted: st.builds(
        ev.RequestAdopted,
        requests(st.sampled_from(ADOPTED)),
        endpoint_ids,
        st.none() | endpoint_ids,
        st.booleans(),
        tokens,
    ),
    ev.LegFailed: st.builds(ev.LegFailed, _ids, st.sampled_from(Stage), endpoint_ids, st.sampled_from(Fault)),
    ev.MoveOrdered: st.builds(ev.MoveOrdered, _ids, endpoint_ids),
    ev.RequestMoved: st.builds(ev.RequestMoved, _ids, endpoint_ids),
    ev.LeadershipChanged: st.builds(ev.LeadershipChanged, st.booleans()),
    ev.PrefillDone: st.builds(ev.PrefillDone, _ids, bound=st.sampled_from([False, False, True])),
    ev.SegmentDone: st.builds(ev.SegmentDone, _ids, tokens, st.booleans()),
    ev.Migrated: st.builds(ev.Migrated, _ids, endpoint_ids),
    ev.MigrationFailed: st.builds(ev.MigrationFailed, _ids, endpoint_ids),
    ev.RequestRedirected: st.builds(
        ev.RequestRedirected, _ids, st.none() | _anywhere, st.one_of(_anywhere, endpoint_ids)
    ),
    ev.FirstToken: st.builds(ev.FirstToken, _ids),
    ev.Progress: st.builds(ev.Progress, _ids, tokens),
    ev.ProgressBatch: _reports.map(lambda reports: ev.ProgressBatch(tuple(sorted(reports, key=lambda one: one[0])))),
    ev.LengthPredicted: st.builds(ev.LengthPredicted, _ids, st.sampled_from([0.0, 20.0, 900.0, -1.0, inf, nan])),
    ev.DispatchFailed: st.builds(ev.DispatchFailed, _ids, st.sampled_from(Stage), endpoint_ids),
    ev.RequestEnded: st.builds(ev.RequestEnded, _ids, st.sampled_from(Outcome), tokens),
    ev.ClientGone: st.builds(ev.ClientGone, _ids),
    ev.EndpointObserved: st.builds(ev.EndpointObserved, endpoints, st.none() | observations),
    ev.EndpointsScraped: _scrapes.map(lambda answers: ev.EndpointsScraped(Observations.of(answers))),
    ev.EndpointDraining: st.builds(ev.EndpointDraining, endpoint_ids),
    ev.EndpointRestored: st.builds(ev.EndpointRestored, endpoint_ids),
    ev.EndpointLost: st.builds(ev.EndpointLost, endpoint_ids),
    ev.EndpointsHeard: st.lists(_signs, max_size=5).map(ev.EndpointsHeard),
    ev.CacheReportsBegun: st.builds(
        ev.CacheReportsBegun, endpoint_ids, st.integers(0, 1), st.integers(1, 20), st.sampled_from(["", "a gap"])
    ),
    ev.CacheReported: st.builds(ev.CacheReported, endpoint_ids, st.integers(0, 1), st.lists(_kv_reports, max_size=4)),
    ev.CacheReportsEnded: st.builds(ev.CacheReportsEnded, endpoint_ids),
    ev.ModelsObserved: st.builds(ev.ModelsObserved, endpoint_ids, _models),
    ev.TimerFired: st.just(ev.TimerFired()),
}
"""A generator of each kind of event, with ids and words that need not make sense; for the times see `dated`."""


def dated(event: ev.Event, last_s: float, now_s: float) -> ev.Event:
    """The event at `now_s`. Reports of a batch are generated with shares of the time since the event before."""
    if not isinstance(event, ev.ProgressBatch):
        return event
    span_s = now_s - last_s
    return ev.ProgressBatch(tuple((last_s + share * span_s, name, count) for share, name, count in event.reports))


Step: TypeAlias = tuple[float, ev.Event]
"""Seconds since the step before, and an event that is not `dated` yet."""

_OFTEN = (
    *[ev.RequestArrived] * 5,
    *[ev.TimerFired] * 2,
    ev.PrefillDone,
    ev.Progress,
    ev.ProgressBatch,
    ev.EndpointObserved,
)
_steps: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from([0.0, 0.01, 0.3, 1.0]), st.sampled_from([*ANY, *_OFTEN]).flatmap(ANY.__getitem__)
)
scripts: st.SearchStrategy[list[Step]] = st.integers(0, 80).flatmap(
    lambda length: st.lists(_steps, min_size=length, max_size=length)
)
"""Of any length: lists without a least size are short as a rule."""


def kinds_of(union: object) -> set[type]:
    """The classes of a union."""
    return {kind for part in get_args(union) for kind in (kinds_of(part) if isinstance(part, UnionType) else {part})}


def fleet(names: tuple[str, ...]) -> list[Endpoint]:
    """These endpoints, as their names say."""
    return [endpoint(name) for name in names]
