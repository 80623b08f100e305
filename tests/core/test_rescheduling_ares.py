"""ARES against a plain transcription of Algorithm 1 with its errata, on random small fleets."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.policies.registry import RESCHEDULING, PolicyError, build
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.policies.rescheduling.load_curves import Horizon, LoadCurves, rate_classes
from ballast_core.policies.rescheduling.protocol import Decodes
from tests.support.decodes import decodes, fleets

policies = st.builds(
    Ares,
    theta=st.sampled_from([0.0, 0.1, 0.5]),
    points=st.sampled_from([1, 4, 16]),
    prediction=st.booleans(),
    load=st.sampled_from(["share", "tokens"]),
    payoff=st.sampled_from([0.1, 1.0, 5.0]),
    memory_ratio=st.sampled_from([0.5, 1.0]),
)


def plain_loads(policy: Ares, fleet: Decodes, where: list[int]) -> np.ndarray:
    """Load of each endpoint at each point, by adding up every request: shape (endpoints, points)."""
    horizon, rates = policy.horizon, rate_classes(fleet.tokens_per_s)
    loads = np.tile(fleet.other_tokens[:, None], len(horizon.times_s))
    for r, i in enumerate(where):
        grown = rates[i] * horizon.times_s
        runs = (grown < fleet.remaining_tokens[r]) | (grown == 0.0)  # what runs now counts now
        loads[i] += np.where(runs, fleet.tokens[r] + grown, 0.0)
    if policy.load == "share":
        loads *= (fleet.kv_tokens[fleet.takes].mean() / fleet.kv_tokens)[:, None]
    return loads


def plain_objective(policy: Ares, fleet: Decodes, where: list[int]) -> float:
    loads = plain_loads(policy, fleet, where)[fleet.takes]
    return float(np.var(loads, axis=0) @ policy.horizon.weights)


def all_ready(fleet: Decodes) -> Decodes:
    return replace(fleet, takes=np.ones(len(fleet.takes), np.bool_))


def plain_candidates(policy: Ares, fleet: Decodes) -> list[tuple[int, int]]:
    """Lines 11 to 23: (request, target)."""
    where = fleet.endpoint.tolist()
    loads = plain_loads(policy, fleet, where) @ policy.horizon.weights
    mean = loads[fleet.takes].mean()
    over = [i for i in range(len(loads)) if fleet.takes[i] and loads[i] > (1 + policy.theta) * mean]
    under = [i for i in range(len(loads)) if fleet.takes[i] and loads[i] < (1 + policy.theta) * mean]
    return [
        (r, target)
        for source in over
        for target in under
        for r, i in enumerate(where)
        if i == source and fleet.may_move[r] and plain_allowed(policy, fleet, r, target)
    ]


def plain_allowed(policy: Ares, fleet: Decodes, r: int, target: int) -> bool:
    if fleet.endpoint[r] == target or (fleet.free_decodes is not None and not fleet.free_decodes[target]):
        return False
    held = fleet.other_tokens[target] + sum(fleet.tokens[fleet.endpoint == target])
    more = fleet.tokens[r] + (fleet.remaining_tokens[r] if policy.prediction else 0.0)
    return bool(held + more <= policy.memory_ratio * fleet.kv_tokens[target]) and plain_outlives(
        policy, fleet, r, target
    )


def plain_outlives(policy: Ares, fleet: Decodes, r: int, target: int) -> bool:
    source = fleet.endpoint[r]
    if not np.isfinite(fleet.migration_s[source, target]):
        return False
    if not policy.prediction:
        return True
    cost_s = fleet.migration_setup_s + fleet.migration_s[source, target] * fleet.tokens[r]
    return bool(fleet.remaining_tokens[r] > policy.payoff * cost_s * rate_classes(fleet.tokens_per_s)[source])


def plain_gain(policy: Ares, fleet: Decodes, r: int, target: int) -> float:
    where = fleet.endpoint.tolist()
    before = plain_objective(policy, fleet, where)
    where[r] = target
    return before - plain_objective(policy, fleet, where)


@pytest.mark.rotating(3)
@settings(deadline=None, max_examples=200)
@given(policy=policies, fleet=fleets())
def test_the_move_is_the_best_of_all(policy: Ares, fleet: Decodes) -> None:
    """Same objective and, within rounding, the same gain as trying every pair; none where no pair gains."""
    fleet = all_ready(fleet)
    decided = policy.decide(fleet)
    objective = plain_objective(policy, fleet, fleet.endpoint.tolist())
    assert decided.objective == pytest.approx(objective, rel=1e-9, abs=1e-6)
    gains = {pair: plain_gain(policy, fleet, *pair) for pair in plain_candidates(policy, fleet)}
    best = max(gains.values(), default=0.0)
    if decided.moves:
        (move,) = decided.moves
        assert move.gain == pytest.approx(gains[move.request, move.target], rel=1e-6, abs=1e-6 * objective)
        assert move.gain >= best - 1e-6 * objective
        assert move.gain > 0
    else:
        assert best <= 1e-6 * objective


@settings(deadline=None)
@given(policy=policies, fleet=fleets(), most=st.integers(2, 6))
def test_moves_follow_each_other(policy: Ares, fleet: Decodes, most: int) -> None:
    """The gains of a round's balancing moves add up; nobody moves twice, to itself, beyond memory or places."""
    policy = replace(policy, max_moves_per_round=most, max_moves_under_way=most, empty_draining=False)
    decided = policy.decide(fleet)
    where, held = fleet.endpoint.tolist(), fleet.other_tokens.copy()
    np.add.at(held, fleet.endpoint, fleet.tokens)
    before = plain_objective(policy, fleet, where)
    for move in decided.moves:
        assert fleet.may_move[move.request]
        assert where[move.request] == fleet.endpoint[move.request] != move.target
        assert np.isfinite(fleet.migration_s[where[move.request], move.target])
        assert fleet.takes[move.target]
        where[move.request] = move.target
        held[move.target] += fleet.tokens[move.request]
        held[move.target] += fleet.remaining_tokens[move.request] if policy.prediction else 0.0
        assert held[move.target] <= policy.memory_ratio * fleet.kv_tokens[move.target]
        after = plain_objective(policy, fleet, where)
        assert after < before
        assert before - after == pytest.approx(move.gain, rel=1e-6, abs=1e-6 * before)
        before = after
    assert len(decided.moves) <= most
    came = np.bincount([move.target for move in decided.moves], minlength=len(fleet.takes))
    assert fleet.free_decodes is None or (came <= fleet.free_decodes).all()


@settings(deadline=None)
@given(policy=policies, fleet=fleets())
def test_rounds_end(policy: Ares, fleet: Decodes) -> None:
    """Nobody comes or goes: each round lowers the objective, and before long there is nothing left to move."""
    fleet, objective = all_ready(fleet), np.inf
    for _ in range(100):
        decided = policy.decide(fleet)
        assert decided.objective < objective
        objective = decided.objective
        if not decided.moves:
            return
        (move,) = decided.moves
        endpoint = fleet.endpoint.copy()
        endpoint[move.request] = move.target
        fleet = replace(fleet, endpoint=endpoint)
    raise AssertionError("the rounds go on")


@settings(deadline=None)
@given(policy=policies, fleet=fleets())
def test_a_curve_that_follows_is_one_made_anew(policy: Ares, fleet: Decodes) -> None:
    """Rank-one updates against sums over all requests."""
    curves = LoadCurves(fleet, policy.horizon, by_capacity=policy.load == "share")
    where = fleet.endpoint.tolist()
    for row in range(0, len(where), 2):
        target = (where[row] + 1) % len(fleet.kv_tokens)
        curves.move(row, target, 0.0)
        where[row] = target
    np.testing.assert_allclose(curves.loads, plain_loads(policy, fleet, where), rtol=1e-9, atol=1e-6)


@settings(deadline=None)
@given(policy=policies, fleet=fleets())
def test_what_drains_is_left_first(policy: Ares, fleet: Decodes) -> None:
    """The longest request that finds a place goes to where the variance then rises least."""
    policy = replace(policy, max_moves_under_way=1)
    drains = ~fleet.takes
    moves = policy.decide(fleet).moves
    leaving = [r for r, i in enumerate(fleet.endpoint) if drains[i] and fleet.may_move[r]]
    leaving.sort(key=lambda r: -fleet.remaining_tokens[r])
    for r in leaving:
        places = [j for j in np.flatnonzero(fleet.takes) if plain_allowed(policy, fleet, r, int(j))]
        if not places:
            continue
        gains = {int(j): plain_gain(policy, fleet, r, int(j)) for j in places}
        (move,) = moves
        assert move.request == r
        scale = max(abs(gain) for gain in gains.values())
        assert gains[move.target] >= max(gains.values()) - 1e-6 * scale
        return
    assert all(fleet.takes[fleet.endpoint[move.request]] for move in moves)


@pytest.mark.rotating(2)
@settings(deadline=None, max_examples=300)
@given(policy=policies, fleet=fleets(), most=st.integers(1, 6))
def test_a_round_that_empties_is_the_plain_loop(policy: Ares, fleet: Decodes, most: int) -> None:
    """One after the other, the longest first, each with the moves before it done; who fits nowhere is passed over."""
    policy = replace(policy, max_moves_under_way=most)
    where, held = fleet.endpoint.tolist(), fleet.other_tokens.copy()
    np.add.at(held, fleet.endpoint, fleet.tokens)
    free = np.full(len(fleet.takes), 99) if fleet.free_decodes is None else fleet.free_decodes.copy()
    leaving = [r for r, i in enumerate(fleet.endpoint) if not fleet.takes[i] and fleet.may_move[r]]
    leaving.sort(key=lambda r: -fleet.remaining_tokens[r])
    moves = [each for each in policy.decide(fleet).moves if not fleet.takes[fleet.endpoint[each.request]]]
    expected = iter(moves)
    for r in leaving:
        more = fleet.tokens[r] + (fleet.remaining_tokens[r] if policy.prediction else 0.0)
        room = policy.memory_ratio * fleet.kv_tokens - held
        outlived = [j for j in np.flatnonzero(fleet.takes) if plain_outlives(policy, fleet, r, int(j))]
        places = [int(j) for j in outlived if more <= room[j] and free[j]]
        if not places or most == 0:
            continue
        move, most = next(expected), most - 1
        before = plain_objective(policy, fleet, where)
        gains = {j: before - plain_objective(policy, fleet, [*where[:r], j, *where[r + 1 :]]) for j in places}
        assert move.request == r
        assert gains[move.target] >= max(gains.values()) - 1e-6 * max(map(abs, gains.values()))
        where[r] = move.target
        held[move.target] += more
        free[move.target] -= 1
    assert next(expected, None) is None


def test_who_fits_nowhere_is_not_weighed() -> None:
    """Endpoints that drain beside full ones: thirty times the requests take no more steps of Python."""

    def steps(requests: int) -> int:
        fleet = decodes(
            endpoint=[0] * requests + [1],
            tokens=[1000.0] * requests + [199_000.0],
            remaining_tokens=[5000.0] * (requests + 1),
            endpoints=2,
        )
        fleet, called = replace(fleet, takes=np.array([False, True])), 0

        def count(_frame: object, _event: str, _argument: object) -> None:
            nonlocal called
            called += 1

        sys.setprofile(count)
        try:
            decided = Ares().decide(fleet)
        finally:
            sys.setprofile(None)
        assert decided.moves == ()
        return called

    assert steps(200) == steps(6)


def test_it_sees_what_is_to_come() -> None:
    """Section 5.1: a load that ends soon relieves itself. Two requests of one are about to end, two of two go on.

    By tokens held now, endpoint 0 has 8,000 and endpoint 1 has 6,000: only looking ahead tells that 1 is the crowded
    one.
    """
    fleet = decodes(
        endpoint=[0, 0, 1, 1], tokens=[4000.0, 4000.0, 3000.0, 3000.0], remaining_tokens=[10.0, 10.0, 5000.0, 5000.0]
    )
    (move,) = Ares().decide(fleet).moves
    assert (move.request in {2, 3}, move.target) == (True, 0)
    now_only = Ares(prediction=False).decide(fleet)
    assert now_only.moves == ()  # 4,000 of 8,000 moved would make it 4,000 and 10,000
    assert now_only.reason == "no move lowers the variance"


def test_nothing_to_gain_is_nothing_to_do() -> None:
    """Two endpoints, one request of 1,000: to swap their places changes nothing, and doing nothing wins the tie."""
    fleet = decodes(endpoint=[0], tokens=[1000.0], remaining_tokens=[9000.0], endpoints=2)
    decided = Ares(theta=0.0).decide(fleet)
    assert (decided.moves, decided.reason) == ((), "no move lowers the variance")


def test_the_request_brings_what_it_holds() -> None:
    """Line 21 as it should read: 30,000 held and 20,000 to come do not fit into 45,000 that are free."""
    fleet = decodes(
        endpoint=[0, 0],
        tokens=[30_000.0, 30_000.0],
        remaining_tokens=[20_000.0, 20_000.0],
        kv_tokens=[200_000.0, 45_000.0],
    )
    policy = Ares(memory_ratio=1.0, load="tokens")
    assert policy.decide(fleet).moves == ()
    assert len(policy.decide(replace(fleet, kv_tokens=np.array([200_000.0, 50_000.0]))).moves) == 1


def test_nowhere_to_go() -> None:
    """All drain, or there is one endpoint only."""
    fleet = decodes(endpoint=[0, 0], tokens=[1000.0, 10.0], remaining_tokens=[9000.0, 9000.0], endpoints=2)
    assert Ares().decide(replace(fleet, takes=np.array([False, False]))).moves == ()
    alone = Ares().decide(decodes(endpoint=[0], tokens=[1000.0], remaining_tokens=[9000.0]))
    assert (alone.moves, alone.reason) == ((), "there are not two endpoints to choose between")


def test_no_more_moves_at_a_time_than_allowed() -> None:
    """Those under way count."""
    fleet = decodes(endpoint=[0] * 8, tokens=[1000.0] * 8, remaining_tokens=[5000.0] * 8, endpoints=2)
    policy = Ares(max_moves_per_round=3, max_moves_under_way=4)
    assert len(policy.decide(fleet).moves) == 3
    assert len(policy.decide(replace(fleet, moves_under_way=2)).moves) == 2
    full = policy.decide(replace(fleet, moves_under_way=4))
    assert (full.moves, full.reason) == ((), "4 moves are under way, the limit")


def test_weights_sum_to_one_and_halve() -> None:
    """beta, normalised."""
    horizon = Horizon.discounted(60.0, 20.0, 6)
    assert horizon.times_s.tolist() == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert horizon.weights.sum() == pytest.approx(1.0)
    assert horizon.weights[2] == pytest.approx(horizon.weights[0] / 2)


def test_bad_parameters_are_named() -> None:
    """From a manifest."""
    assert build(RESCHEDULING, "ares", {"theta": 0.3}) == Ares(theta=0.3)
    with pytest.raises(PolicyError, match="theta: must be a finite number, 0 or more") as error:
        build(RESCHEDULING, "ares", {"theta": -1.0})
    assert error.value.field == "parameters.theta"
    for name, value in (("points", 0), ("horizon_s", 0.0), ("memory_ratio", 1.5), ("predictor", "crystal")):
        with pytest.raises(PolicyError, match=name):
            build(RESCHEDULING, "ares", {name: value})
