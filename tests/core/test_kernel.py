"""The compiled kernel against its reference in numpy: the same costs within 1e-11, the same choices outside ties.

The property tests run under AddressSanitizer with `make kernel-asan`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core import kernel
from ballast_core.arrays import FloatArray
from ballast_core.beliefs.survival_book import SurvivalBook, SurvivalSettings
from ballast_core.beliefs.survival_tables import Buckets, SurvivalTables
from ballast_core.directing.director import Director
from ballast_core.directing.placer import Placer
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Observation, Outcome, Request, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.model.events import (
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    Event,
    FirstToken,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
)
from ballast_core.policies.placement.ballast import Ballast
from ballast_core.policies.placement.cache_aware import LeastUncachedTokens, PredictedTtft
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.placement.sibyl import Sibyl
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.age_histograms import AGES
from ballast_core.state.ledger import Ledger
from tests.support.kernels import deciding_by, needs_kernel
from tests.support.placement_states import NOW_S, Flight, State, ask, asks, build, states, view

pytestmark = needs_kernel

AGREES = 1e-11
several = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
POLICIES: list[Placement] = [Ballast(), LeastUncachedTokens(), PredictedTtft(), Sibyl()]
handoffs = st.none() | st.floats(0.0, 30.0)


def both(policy: Placement, made: Director, request: Request, **options: Any) -> tuple[FloatArray, FloatArray]:
    """Costs by the kernel and by numpy, in one state."""
    found = []
    for compiled in (True, False):
        with deciding_by(compiled=compiled):
            found.append(policy.costs(view(made, request, **options), request))
    return found[0], found[1]


def assert_agree(compiled: FloatArray, reference: FloatArray) -> None:
    np.testing.assert_allclose(compiled, reference, rtol=AGREES, atol=0.0)


@several
@given(state=states, request=asks, handoff_s=handoffs, policy=st.sampled_from(POLICIES))
def test_costs_agree_on_decode(state: State, request: Request, handoff_s: float | None, policy: Placement) -> None:
    """Unlike and unknown hardware, foreign requests, limits, prefixes, pending requests; hand-offs or own prefills."""
    assert_agree(*both(policy, build(state), request, handoff_s=handoff_s))


@several
@given(state=states, request=asks, policy=st.sampled_from(POLICIES))
def test_costs_agree_on_prefill(state: State, request: Request, policy: Placement) -> None:
    made = build(replace(state, role=Role.FLEXIBLE))
    assert_agree(*both(policy, made, request, stage=Stage.PREFILL))


@several
@given(
    held=st.lists(st.integers(0, 400_000), min_size=5, max_size=5),
    request=asks,
    handoff_s=handoffs,
    generated=st.integers(0, 70_000),
)
def test_costs_agree_where_the_kv_caches_overflow(
    held: list[int], request: Request, handoff_s: float | None, generated: int
) -> None:
    """And beyond the survival table's end."""
    flying = [
        Flight(at=at, prompt=max(tokens // 7, 1), generated=generated)
        for at, tokens in enumerate(held)
        for _ in range(7)
    ]
    made = build(State(endpoints=5, hardware=("h20-qwen3-32b", "a100-qwen3-32b", ""), flights=flying, ended=[700] * 9))
    assert_agree(*both(Ballast(), made, request, handoff_s=handoff_s))


@several
@given(order=st.lists(st.integers(0, 4), max_size=5, unique=True), state=states, request=asks)
def test_costs_agree_for_any_candidates(order: list[int], state: State, request: Request) -> None:
    """A part of the fleet, down to one endpoint; of an empty one the reference is never asked."""
    made = build(state)
    if order:
        assert_agree(*both(Ballast(), made, request, order=order))
    else:
        with deciding_by(compiled=True):
            assert len(Ballast().costs(view(made, request, order=order, handoff_s=None), request)) == 0


switches = st.builds(
    Sibyl,
    prob_at_one=st.booleans(),
    without_type_one=st.booleans(),
    without_type_two=st.booleans(),
    without_type_three=st.booleans(),
)


@several
@given(state=states, request=asks, handoff_s=handoffs, policy=switches, order=st.permutations(range(5)))
def test_sibyl_and_its_variants_agree(
    state: State, request: Request, handoff_s: float | None, policy: Sibyl, order: list[int]
) -> None:
    assert_agree(*both(policy, build(state), request, handoff_s=handoff_s, order=order[:3]))


def test_sibyl_follows_tokens_ends_and_new_curves() -> None:
    """What the kernel keeps of each request is written anew when the request or the curves change."""
    made, request = build(State(flights=[Flight(at=k % 3, generated=50 * k, limit=900) for k in range(9)])), ask()
    assert_agree(*both(Sibyl(), made, request))
    entries = list(made.ledger)
    made.ledger.progressed(entries[4], 800, NOW_S + 1.0)
    assert_agree(*both(Sibyl(), made, request))
    made.ledger.close(entries[0].request.id)
    assert_agree(*both(Sibyl(), made, request))
    before = both(Sibyl(), made, request)
    made.beliefs.lengths = SurvivalBook()
    for compiled in (True, False):  # one table, whoever builds it
        with deciding_by(compiled=compiled):
            made.beliefs.lengths.ended(None, 700, censored=False, now_s=NOW_S)
    after = both(Sibyl(), made, request)
    assert_agree(*after)
    assert (before[0] != after[0]).all()


def fleet(policy: Placement, roles: tuple[Role, ...]) -> Director:
    made = Director(DirectorSettings(prefill=policy, decode=policy, profiles=SHIPPED_PROFILES))
    for number, role in enumerate(roles):
        _observe(made, number, role, running=0, now_s=0.0)
    return made


def _observe(made: Director, number: int, role: Role, *, running: int, now_s: float) -> list[Effect]:
    profile = ("a100-qwen3-32b", "h20-qwen3-32b", "h20-qwen3-32b", "unknown")[number % 4]
    endpoint = Endpoint(EndpointId(f"e{number:02d}"), f"e{number}:8000", role, profile=profile)
    return made.on_event(EndpointObserved(endpoint, Observation(now_s, running=running, waiting=number % 2)), now_s)


def script(rng: random.Random, roles: tuple[Role, ...], length: int) -> list[tuple[float, Event]]:
    """Requests of several classes and limits come, prefill, generate and end; endpoints report, drain and are lost."""
    events: list[tuple[float, Event]] = []
    open_requests: dict[RequestId, int] = {}
    now_s = 1.0
    for step in range(length):
        now_s += rng.choice([0.0, 0.01, 0.1, 1.0]) * rng.random()
        kind = rng.random()
        known = list(open_requests)
        if kind < 0.45 or not known:
            name = RequestId(f"r{step}")
            open_requests[name] = 0
            blocks = tuple(range(1, rng.randint(2, 40))) if rng.random() < 0.5 else ()
            request = Request(
                name,
                rng.choice([1, 500, 3_000, 60_000]),
                max_output_tokens=rng.choice([None, None, 64, 65, 4_000]),
                traffic_class=rng.choice(["", "chat", "batch"]),
                block_hashes=blocks,
                block_size=16 if blocks else 0,
            )
            events.append((now_s, RequestArrived(request)))
        elif kind < 0.9:
            name = rng.choice(known)
            if open_requests[name] == 0:
                events += [(now_s, PrefillDone(name)), (now_s, FirstToken(name))]
                open_requests[name] = 1
            elif rng.random() < 0.7:
                open_requests[name] += rng.choice([1, 16, 900])
                events.append((now_s, Progress(name, open_requests[name])))
            else:
                events.append((now_s, RequestEnded(name, Outcome.COMPLETED, open_requests.pop(name))))
        else:
            number = rng.randrange(len(roles))
            endpoint = EndpointId(f"e{number:02d}")
            if kind < 0.93 and number:
                leaves = EndpointDraining if rng.random() < 0.5 else EndpointLost
                events.append((now_s, leaves(endpoint)))
            else:
                profile = ("a100-qwen3-32b", "h20-qwen3-32b", "h20-qwen3-32b", "unknown")[number % 4]
                seen = Endpoint(endpoint, f"e{number}:8000", roles[number], profile=profile)
                events.append((now_s, EndpointObserved(seen, Observation(now_s, running=rng.randrange(60), waiting=0))))
    return events


ROLES = [
    (Role.PREFILL, Role.PREFILL, *([Role.DECODE] * 5)),
    (Role.FLEXIBLE,) * 6,
    (Role.PREFILL, Role.PREFILL, Role.FLEXIBLE, Role.DECODE, Role.FLEXIBLE, Role.DECODE),
    (*([Role.PREFILL] * 8), *([Role.DECODE] * 24)),
]


@pytest.mark.rotating(3)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), roles=st.sampled_from(ROLES), policy=st.sampled_from(POLICIES))
def test_two_directors_choose_alike_outside_ties(seed: int, roles: tuple[Role, ...], policy: Placement) -> None:
    """One decides by the kernel, its twin by numpy, over the same events: until a tie parts them, all effects agree."""
    made, twin = fleet(policy, roles), fleet(policy, roles)
    for now_s, event in script(random.Random(seed), roles, 150):
        with deciding_by(compiled=True):
            effects = made.on_event(event, now_s)
        with deciding_by(compiled=False):
            expected = twin.on_event(event, now_s)
        assert [type(effect) for effect in effects] == [type(effect) for effect in expected]
        for effect, other in zip(effects, expected, strict=True):
            if not isinstance(effect, Dispatch | Handoff):
                assert effect == other
                continue
            assert isinstance(other, Dispatch | Handoff)
            for trace, want in zip(effect.traces, other.traces, strict=True):
                assert_agree(trace.costs, want.costs)
                if trace.chosen != want.chosen:
                    ids = [one.id for one in trace.candidates]
                    pair = want.costs[[ids.index(trace.chosen), ids.index(want.chosen)]]
                    np.testing.assert_allclose(pair[0], pair[1], rtol=AGREES)
                    return  # a tie: their books differ from here on


tied = st.sampled_from([0.0, 1.0, 1.0, 2.0, float("inf")])


@given(
    costs=st.lists(tied | st.floats(allow_nan=True), min_size=1, max_size=12),
    turns=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    keep=st.integers(-1, 15),
)
def test_ties_are_broken_alike(costs: list[float], turns: list[int], keep: int) -> None:
    slots = np.arange(len(costs))[::-1].copy()
    chosen = []
    for compiled in (True, False):
        with deciding_by(compiled=compiled):
            chosen.append(Placer._best(np.array(costs), slots, np.array(turns), keep))
    assert chosen[0] == chosen[1]


@given(rows=st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=12), timed=st.booleans(), data=st.data())
def test_whether_all_have_capacity_is_found_alike(
    rows: list[tuple[int, int, int, int]], timed: bool, data: st.DataObject
) -> None:
    compiled = kernel.active()
    assert compiled is not None
    requests, most, tokens, least = np.array(rows).T.copy()
    slots = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12)), np.int64)
    room = (requests < most) | (timed & (tokens < least))
    given_tokens = (tokens, least.astype(float)) if timed else (None, None)
    assert compiled.all_have_room(slots, requests, most, *given_tokens) is bool(room[slots].all())


@several
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "start", "start", "progress", "progress", "remove", "look"]),
            st.integers(0, 10**6),
            st.sampled_from([None, None, 100, 5_000, 5_001, 2**62]),
        ),
        max_size=120,
    )
)
def test_a_census_counts_what_the_age_histograms_do(steps: list[tuple[str, int, int | None]]) -> None:
    """To the last bit, after any arrivals, hand-offs, tokens and ends: sums of whole numbers know no order."""
    compiled = kernel.active()
    assert compiled is not None
    ledger = Ledger(16)
    flights, kept = ledger.flights, ledger.age_histograms
    for number, (step, pick, limit) in enumerate([*steps, ("look", 0, None)]):
        row, now_s = pick % max(flights.count, 1), float(number)
        if step == "add":
            flights.add(
                slot=min(pick, number) % 9, prompt_tokens=pick, limit_tokens=limit, handoff_at_s=now_s, now_s=now_s,
                class_slot=pick % 3 // 2,
            )  # fmt: skip
        elif step == "look":
            kept.update()
            census, counted = ledger.prepared.census(compiled), 0
            for each in kept:
                sums = np.zeros((3, *each.counts.shape))
                counted += each.total
                assert compiled.tallies(census, each.group, *sums) == each.total
                assert (sums == [each.counts, each.held, each.squares]).all()
            assert counted == int(flights.decoding.sum())
        elif flights.count:
            if step == "start":
                flights.start_decoding(row, now_s)
            elif step == "progress":
                flights.progress(row, int(flights.generated_tokens[row]) + pick % 2000, now_s)
            else:
                flights.remove(row)


lengths = st.lists(st.tuples(st.integers(0, 70_000), st.booleans()), max_size=60)


@several
@given(ended=lengths, of_class=lengths, buckets=st.sampled_from([Buckets(), Buckets(step_tokens=7, count=3)]))
def test_survival_tables_are_the_same_to_the_last_bit(
    ended: list[tuple[int, bool]], of_class: list[tuple[int, bool]], buckets: Buckets
) -> None:
    """Of one class and of several, after any ends, on a coarse grid too."""
    book = SurvivalBook(SurvivalSettings(buckets=buckets))
    for key, several_ended in ((None, ended), ("chat", of_class)):
        for tokens, cut in several_ended:
            book.ended(key, tokens, censored=cut, now_s=float(tokens % 7))
    made = []
    for compiled in (True, False):
        with deciding_by(compiled=compiled):
            made.append(book._build())
    for name in ("_survival", "_drop", "_intercept", "_area", "_end", "_at_end", "_hazard"):
        np.testing.assert_array_equal(getattr(made[0], name), getattr(made[1], name), err_msg=name)


def test_curves_with_nan_are_refused_by_both() -> None:
    for compiled in (True, False):
        with deciding_by(compiled=compiled), pytest.raises(ValueError, match="survival: must not hold NaN"):
            SurvivalTables(Buckets(count=2), np.array([1.0, np.nan, 0.0]))


# --- mistakes raise ---------------------------------------------------------------------------------------------------

Arguments = list[Any]


def recorded(name: str) -> Arguments:
    """The arguments of a real call."""
    taken: list[Arguments] = []
    real = kernel.active()
    assert real is not None

    class Spy:
        def __getattr__(self, wanted: str) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                if wanted == name:
                    taken.append(copies(given))
                return getattr(real, wanted)(*given)

            return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_active", Spy())
        state = State(
            endpoints=3,
            flights=[
                Flight(at=k % 3, generated=None if k % 3 else 40 * k, limit=200 if k % 2 else None) for k in range(12)
            ],
            ended=[300] * 5,
        )
        made = build(state)
        for stage in Stage:
            for policy in POLICIES:
                shown = view(made, ask(), stage=stage)
                policy.costs(shown, ask())
                Placer._best(np.ones(len(shown.slots)), shown.slots, np.zeros(64, np.int64), -1)
        spy = kernel.active()
        assert spy is not None
        spy.tallies(made.ledger.prepared.census(spy), AGES, *np.zeros((3, 3, AGES)))
        spy.all_have_room(np.arange(3), np.arange(4), np.arange(1, 5), np.arange(4), np.ones(4))
    return taken[0]


def copies(given: Iterable[Any]) -> Arguments:
    """The arguments of a call; those of another one may be written to meanwhile."""
    return [each.copy() if isinstance(each, np.ndarray) else each for each in given]


def spoilt(value: Any, how: int) -> Any:
    """The argument as a careless caller might pass it."""
    if isinstance(value, np.ndarray):
        return [
            value[:0],
            value.astype(np.float32),
            value.astype(np.int32),
            np.stack([value, value]),
            np.repeat(value, 2, axis=-1)[..., ::2],
            value.tolist(),
            None,
            np.full_like(value, -5) if value.dtype != np.bool_ else value.astype(np.int8),
            np.full_like(value, 2**40) if value.dtype == np.int64 else value.astype(">f8"),
            np.full(value.shape, np.nan) if value.dtype == np.float64 else object(),
        ][how]
    return ["text", None, (), np.zeros(3), -1, 2**70, float("nan"), [None], [object()], -(2**40)][how]


FUNCTIONS = [
    "fleet", "prefill_s", "least_uncached_tokens", "ballast", "choose", "all_have_room",
    "curves", "tabulate", "kaplan_meier", "census", "recount", "tallies", "growth", "regrow", "sibyl",
]  # fmt: skip


def test_every_function_is_spoilt() -> None:
    made = kernel.active()
    assert {name for name in dir(made) if callable(getattr(made, name)) and name[0] != "_"} == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_argument_crashes_it(name: str) -> None:
    """Each argument spoilt in ten ways: it raises, or computes something within its arrays."""
    function, arguments = getattr(kernel.active(), name), recorded(name)
    function(*copies(arguments))
    for count in range(len(arguments)):
        with pytest.raises(TypeError):
            function(*arguments[:count])
    raised = 0
    for index in range(len(arguments)):
        for how in range(10):
            fresh = copies(arguments)
            with np.errstate(all="ignore"):
                fresh[index] = spoilt(fresh[index], how)
            try:
                function(*fresh)
            except (TypeError, ValueError, IndexError, OverflowError, BufferError, AttributeError):
                raised += 1
    assert raised > 3 * len(arguments) or not arguments


def test_what_was_prepared_for_one_argument_fits_no_other() -> None:
    compiled, arguments = kernel.active(), recorded("ballast")
    assert compiled is not None
    prepared = [index for index, each in enumerate(arguments) if type(each).__name__ == "PyCapsule"]
    assert len(prepared) == 3
    for index in prepared:
        for other in prepared:
            if other != index:
                wrong = copies(arguments)
                wrong[index] = arguments[other]
                with pytest.raises(ValueError, match="PyCapsule"):
                    compiled.ballast(*wrong)


def test_a_slot_that_no_fleet_can_have_is_refused_before_anything_is_counted() -> None:
    compiled, arguments = kernel.active(), recorded("recount")
    assert compiled is not None
    good = copies(arguments)
    arguments[2][5] = -1
    with pytest.raises(IndexError, match="row 5: there is no slot -1"):
        compiled.recount(*arguments)
    assert arguments[-1].all()
    compiled.recount(*good)
    assert compiled.tallies(good[0], AGES, *np.zeros((3, 3, AGES))) == 2


def test_what_does_not_fit_is_named() -> None:
    compiled = kernel.active()
    assert compiled is not None
    slots = np.arange(3)
    with pytest.raises(TypeError, match="costs: must hold float64"):
        compiled.choose(slots, slots, slots, -1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slots: must have 3 entries, not 2"):
        compiled.choose(np.ones(3), slots[:2], slots, -1)
    with pytest.raises(IndexError, match="slots: 2 is not from 0 to below 2"):
        compiled.choose(np.ones(3), slots, slots[:2], -1)
    with pytest.raises(TypeError, match="takes 4 arguments, not 1"):
        compiled.choose(np.ones(3))  # type: ignore[call-arg]


# --- the choice of the arithmetic -------------------------------------------------------------------------------------


def test_one_switch_chooses() -> None:
    assert kernel.active() is not None
    with deciding_by(compiled=False):
        assert kernel.active() is None
        assert kernel.name() == "numpy"
    with deciding_by(compiled=True):
        assert kernel.name().startswith("kernel ")


def test_a_kernel_of_other_sources_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernel.active()
    assert real is not None
    monkeypatch.setattr(kernel, "_VERSION", real.VERSION + 1)
    assert kernel._installed() is None


def test_without_a_kernel_none_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_INSTALLED", None)
    monkeypatch.setattr(kernel, "_active", None)
    with pytest.raises(LookupError, match="without a C compiler"):
        kernel.use(True)
    assert not kernel.installed()
    assert kernel.name() == "numpy"


def test_calls_leave_every_reference_count_as_it_was() -> None:
    """Of None, which most functions return, and of what is passed in; None is immortal from Python 3.12 on."""
    installed = kernel.active()
    assert installed is not None
    costs, slots, turns = np.zeros(3), np.arange(3), np.zeros(3, np.int64)
    made, request = build(State(role=Role.FLEXIBLE, flights=(Flight(at=0), Flight(at=1)))), ask()
    watched: list[object] = [None, costs, slots, turns]
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(1_000):
        installed.choose(costs, slots, turns, -1)
        for policy in POLICIES:
            for stage in Stage:
                policy.costs(view(made, request, stage=stage), request)
    after = [sys.getrefcount(each) for each in watched]
    assert all(abs(now - then) < 500 for now, then in zip(after, before, strict=True)), (before, after)
