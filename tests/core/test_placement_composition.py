"""Compositions against their definition in plain Python, whatever their parts cost; and what they are good for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Request, RequestId, Role
from ballast_core.model.events import EndpointObserved, FirstToken, RequestArrived
from ballast_core.policies.placement.cache_aware import DynamoCost, LeastUncachedTokens
from ballast_core.policies.placement.composition import Factor, FilterThen, Lexicographic, Product, Term, WeightedSum
from ballast_core.policies.placement.lmetric import LMetric
from ballast_core.policies.placement.loads import LeastTokens
from ballast_core.policies.placement.placements import LeastRequests, PowerOfTwo, Random
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_core.policies.placement.sibyl import Sibyl
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.view import View
from tests.support.core_builders import only_dispatch
from tests.support.placement_states import BLOCK, Flight, State, ask, asks, build, costs, states

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
INF = math.inf
LARGEST = float(np.finfo(np.float64).max)
ROUNDED = 1 + 1e-12


@dataclass(frozen=True, slots=True)
class Costs:
    """A placement whose costs are given: one per endpoint."""

    type: ClassVar[str] = "given"
    needs: ClassVar[Belief] = Belief.NONE
    given: tuple[float, ...]

    def costs(self, view: View, request: Request) -> FloatArray:
        return np.array(self.given)


def weigh(policy: Placement, endpoints: int = 5) -> list[float]:
    return costs(policy, State(endpoints=endpoints))


numbers = st.sampled_from([0.0, 1e-300, 0.5, 1.0, 1.0, 3.0, 1e6, 1e200, LARGEST, INF]) | st.floats(0, 1e9)
rows = st.lists(st.tuples(*[numbers] * 5), min_size=2, max_size=4)
scales = st.sampled_from([0.0, 1.0]) | st.floats(0, 1e6)


def eligible(table: Sequence[Sequence[float]], at: int) -> bool:
    return all(row[at] < INF for row in table)


@quick
@given(table=rows, offsets=st.lists(scales, min_size=4, max_size=4))
def test_product_is_that_of_costs_and_offsets(table: list[tuple[float, ...]], offsets: list[float]) -> None:
    """inf for who has inf anywhere, also times 0; what overflows stays finite, so that nobody loses his place."""
    policy = Product(tuple(Factor(Costs(row), offset) for row, offset in zip(table, offsets, strict=False)))
    expected = []
    for at in range(5):
        product = 1.0
        for row, offset in zip(table, offsets, strict=False):
            product = min(product * (row[at] + offset), LARGEST) if row[at] < INF else 0.0
        expected.append(product if eligible(table, at) else INF)
    assert weigh(policy) == pytest.approx(expected, rel=1e-12)


@quick
@given(
    table=rows,
    weights=st.lists(scales, min_size=4, max_size=4),
    normalise=st.sampled_from(["raw", "largest", "range"]),
)
def test_weighted_sum_is_that_of_costs_in_the_unit_that_was_chosen(
    table: list[tuple[float, ...]], weights: list[float], normalise: Literal["raw", "largest", "range"]
) -> None:
    """Normalised among the eligible alone."""
    weights[0] = max(weights[0], 0.5)
    policy = WeightedSum(
        tuple(Term(Costs(row), weight) for row, weight in zip(table, weights, strict=False)), normalise=normalise
    )
    running = [at for at in range(5) if eligible(table, at)]
    expected = [INF] * 5
    for at in running:
        total = 0.0
        for row, weight in zip(table, weights, strict=False):
            least, most = min(row[k] for k in running), max(row[k] for k in running)
            unit = {
                "raw": row[at],
                "largest": row[at] / most if most else 0.0,
                "range": (row[at] - least) / (most - least) if most > least else 0.0,
            }[normalise]
            total = min(total + min(weight * unit, LARGEST), LARGEST)
        expected[at] = total
    assert weigh(policy) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def ladder(table: Sequence[Sequence[float]], tolerance: float) -> list[list[int]]:
    """Endpoints from the best rank to the worst, those of one rank together: the definition, recursively."""

    def ranked(among: list[int], part: int) -> list[list[int]]:
        values = table[part]
        if part == len(table) - 1:
            return by_cost(among, values)
        best = min(values[at] for at in among)
        kept = [at for at in among if values[at] <= best * (1 + tolerance) * ROUNDED]
        return ranked(kept, part + 1) + by_cost([at for at in among if at not in kept], values)

    def by_cost(among: list[int], values: Sequence[float]) -> list[list[int]]:
        ordered = sorted(among, key=lambda at: values[at])
        return [list(group) for _, group in itertools.groupby(ordered, key=lambda at: values[at])]

    running = [at for at in range(5) if eligible(table, at)]
    return ranked(running, 0) if running else []


@quick
@given(table=rows, tolerance=st.sampled_from([0.0, 0.1, 1.0, 5.0]))
def test_lexicographic_ranks_are_those_of_the_definition(table: list[tuple[float, ...]], tolerance: float) -> None:
    """Part by part: who drops out at one ranks behind all that went on."""
    expected = [INF] * 5
    for rank, group in enumerate(ladder(table, tolerance)):
        for at in group:
            expected[at] = float(rank)
    assert weigh(Lexicographic(tuple(Costs(row) for row in table), tolerance)) == expected


@quick
@given(
    first=st.tuples(*[numbers] * 5),
    then=st.tuples(*[numbers] * 5),
    keep=st.sampled_from(["share", "within"]),
    ratio=st.sampled_from([0.01, 0.2, 0.5, 0.6, 1.0]),
)
def test_filter_then_costs_what_the_second_says_of_those_that_the_first_keeps(
    first: tuple[float, ...], then: tuple[float, ...], keep: Literal["share", "within"], ratio: float
) -> None:
    """Of those that both take; never nobody, if there is anybody."""
    running = [at for at in range(5) if eligible([first, then], at)]
    expected = [INF] * 5
    if running:
        ranked = sorted(first[at] for at in running)
        limit = ranked[math.ceil(ratio * len(ranked)) - 1] if keep == "share" else ranked[0] * (1 + ratio)
        expected = [then[at] if at in running and first[at] <= limit * ROUNDED else INF for at in range(5)]
    assert weigh(FilterThen(first=Costs(first), then=Costs(then), keep=keep, ratio=ratio)) == expected
    assert any(cost < INF for cost in expected) == bool(running)


leaves = st.sampled_from(sorted(PLACEMENTS)).map(build_placement)


def compositions(inner: st.SearchStrategy[Placement]) -> st.SearchStrategy[Placement]:
    some = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        some.map(lambda parts: Product(tuple(Factor(part, 0.5) for part in parts))),
        some.map(lambda parts: WeightedSum(tuple(Term(part) for part in parts), normalise="range")),
        some.map(lambda parts: Lexicographic(tuple(parts), 0.1)),
        st.builds(FilterThen, first=inner, then=inner),
    )


trees = compositions(st.recursive(leaves, compositions, max_leaves=4))


@quick
@given(policy=trees, state=states, request=asks, handoff_s=st.sampled_from([None, 0.4]), data=st.data())
def test_any_composition_of_shipped_policies_keeps_the_contract(
    policy: Placement, state: State, request: Request, handoff_s: float | None, data: st.DataObject
) -> None:
    """Numbers, the same again, reordered with the candidates, inf where a part says so, beliefs of all parts."""
    order = data.draw(st.permutations(range(state.endpoints)))
    made = build(state)
    straight = costs(policy, made, request, handoff_s=handoff_s)
    assert not np.isnan(straight).any()
    assert costs(policy, made, request, handoff_s=handoff_s) == straight
    # Reordering changes sums of floats in their last bits: ranks may split there, infinities may not.
    permuted = costs(policy, made, request, handoff_s=handoff_s, order=order)
    assert [cost < INF for cost in permuted] == [straight[at] < INF for at in order]
    for leaf in leaves_of(policy):
        assert leaf.needs in policy.needs
        for cost, its in zip(straight, costs(leaf, made, request, handoff_s=handoff_s), strict=True):
            assert cost == INF or its < INF


def leaves_of(policy: Placement) -> list[Placement]:
    match policy:
        case Product() | WeightedSum():
            return [leaf for part in policy.parts for leaf in leaves_of(part.policy)]
        case Lexicographic():
            return [leaf for part in policy.parts for leaf in leaves_of(part)]
        case FilterThen():
            return leaves_of(policy.first) + leaves_of(policy.then)
    return [policy]


# --- what they are good for -------------------------------------------------------------------------------------------


@quick
@given(state=states, request=asks)
def test_lmetric_is_a_product_on_like_hardware(state: State, request: Request) -> None:
    """P (BS + 1): least-uncached-tokens has P in seconds, over a rate that is the same for all."""
    alike = replace(state, hardware=("h20-qwen3-32b",))
    made = build(alike)
    rate = float(made.beliefs.prefill_times.tokens_per_s(np.array([0]))[0])
    product = Product((Factor(LeastUncachedTokens()), Factor(LeastRequests(), offset=1.0)))
    in_tokens = [cost * rate for cost in costs(product, made, request, handoff_s=None)]
    assert in_tokens == pytest.approx(costs(LMetric(hotspot_filter=False), made, request, handoff_s=None))


@quick
@given(state=states, request=asks, weight=st.floats(0.01, 0.99))
def test_dynamos_cost_is_a_weighted_sum_on_like_hardware(state: State, request: Request, weight: float) -> None:
    """w P / max(P) + (1 - w) T / max(T): a share of the largest has no unit, so that seconds do for tokens."""
    made = build(replace(state, hardware=("h20-qwen3-32b",)))
    terms = (Term(LeastUncachedTokens(), weight), Term(LeastTokens(), 1 - weight))
    combined = costs(WeightedSum(terms, normalise="largest"), made, request, handoff_s=None)
    assert combined == pytest.approx(costs(DynamoCost(prefill_weight=weight), made, request, handoff_s=None))


def test_fewest_requests_then_fewest_tokens() -> None:
    """The worked example: requests (3, 1, 1), tokens (100, 900, 400). The tie of one request each goes to 400."""
    flights = [*[Flight(at=0, prompt=p) for p in (50, 30, 20)], Flight(at=1, prompt=900), Flight(at=2, prompt=400)]
    state = State(endpoints=3, flights=flights)
    assert costs(LeastRequests(), state) == [3, 1, 1]
    assert costs(LeastTokens(), state) == [100, 900, 400]
    assert costs(Lexicographic((LeastRequests(), LeastTokens())), state) == [2, 1, 0]
    # Tolerance 2: up to three times the best of 1 is a tie, so that tokens decide among all.
    assert costs(Lexicographic((LeastRequests(), LeastTokens()), tolerance_ratio=2.0), state) == [0, 2, 1]


def test_the_other_worked_examples() -> None:
    """The numbers in the docstrings."""
    four_one, zero_two = Costs((4.0, 1.0)), Costs((0.0, 2.0))
    assert weigh(Product((Factor(four_one), Factor(zero_two, 1.0))), 2) == [4, 3]
    terms = (Term(four_one, 1.0), Term(zero_two, 2.0))
    assert weigh(WeightedSum(terms), 2) == [4, 5]
    assert weigh(WeightedSum(terms, normalise="largest"), 2) == [1, 2.25]
    assert weigh(WeightedSum(terms, normalise="range"), 2) == [1, 2]
    first, then = Costs((10.0, 11.0, 30.0)), Costs((5.0, 2.0, 1.0))
    assert weigh(FilterThen(first=first, then=then, keep="within", ratio=0.2), 3) == [5, 2, INF]
    assert weigh(FilterThen(first=first, then=then, ratio=0.3), 3) == [5, INF, INF]


def test_a_filter_looks_only_at_those_that_the_second_policy_takes() -> None:
    """Power-of-two draws two of four; the best half of these is one of them, not of those that were not drawn."""
    flights = [Flight(at=at) for at in (0, 0, 0, 1, 1, 2)]
    made = build(State(endpoints=4, flights=flights))
    for number in range(20):
        request = ask(name=f"r{number}")
        drawn = costs(PowerOfTwo(), made, request)
        chosen = costs(FilterThen(first=LeastRequests(), then=PowerOfTwo()), made, request)
        assert [at for at in range(4) if chosen[at] < INF] == [drawn.index(min(drawn))]


def test_parts_that_leave_out_everybody_between_them_leave_nobody() -> None:
    """No part is overruled: inf stays inf."""
    assert weigh(Product((Factor(Costs((INF, 0.0))), Factor(Costs((0.0, INF))))), 2) == [INF, INF]
    assert weigh(WeightedSum((Term(Costs((INF, 0.0)), 0.0), Term(Costs((0.0, 1.0)))), normalise="range"), 2) == [INF, 0]


def test_beliefs_and_hotspots_of_the_parts_are_learned() -> None:
    """A Director with a composition learns what its parts read; LMetric's filter works inside of one."""
    plain = Product((Factor(LMetric(hotspot_filter=False)), Factor(Random(), 1e6)))
    filtered = Product((Factor(LMetric()), Factor(Random(), 1e6)))
    most = {}
    for policy in (plain, filtered):
        made = Director(DirectorSettings(prefill=policy, decode=policy, profiles=SHIPPED_PROFILES))
        assert made.beliefs.kinds == Belief.PREFIXES | Belief.HOTSPOTS
        for name in ("f0", "f1", "f2", "f3"):
            endpoint = Endpoint(EndpointId(name), f"{name}:1", Role.FLEXIBLE, profile="h20-qwen3-32b")
            made.on_event(EndpointObserved(endpoint), 0.0)
        chosen = []
        for number in range(60):
            blocks = tuple(range(100)) if number % 10 else (10_000 + number,)
            request = Request(RequestId(f"r{number}"), 1616, block_hashes=blocks, block_size=BLOCK)
            chosen.append(str(only_dispatch(made.on_event(RequestArrived(request), number / 10)).decode.id))
            made.on_event(FirstToken(request.id), number / 10 + 0.05)
        most[policy] = max(chosen.count(name) for name in set(chosen))
    assert most[plain] > 45
    assert most[filtered] < 25


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Product((Factor(Sibyl()),)), "parts: must be 2 to 8 policies, not 1"),
        (lambda: Lexicographic((Sibyl(),) * 9), "parts: must be 2 to 8 policies, not 9"),
        (lambda: Factor(Sibyl(), INF), "offset: must be a finite number, 0 or more, not inf"),
        (lambda: Term(Sibyl(), math.nan), "weight: must be a finite number, 0 or more, not nan"),
        (lambda: WeightedSum((Term(Sibyl(), 0.0),) * 2), "parts: at least one weight must be above 0"),
        (lambda: FilterThen(first=Sibyl(), then=Sibyl(), ratio=1.1), "ratio: must be above 0 and at most 1, not 1.1"),
        (
            lambda: FilterThen(first=Sibyl(), then=Sibyl(), keep="within", ratio=-1.0),
            "ratio: must be a finite number, 0 or more, not -1.0",
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused(make: object, message: str) -> None:
    """The message names the field."""
    assert callable(make)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()
