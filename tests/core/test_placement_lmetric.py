"""LMetric's product, and the two phases of its hotspot detector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from ballast_core.beliefs.hotspots import HotspotDetector
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Request, RequestId, Role
from ballast_core.model.events import EndpointObserved, FirstToken, RequestArrived
from ballast_core.policies.placement.lmetric import LMetric
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.core_builders import only_dispatch
from tests.support.placement_states import BLOCK, State, ask, asks, costs, states

HELD = np.array([True, False, False, False])
COLD = np.array([1.0, 2.0, 2.0, 2.0])


@settings(max_examples=30, deadline=None)
@given(state=states, request=asks)
def test_the_product_of_prefill_tokens_and_batch(state: State, request: Request) -> None:
    """Against the formula, endpoint by endpoint."""
    expected = []
    for at in range(state.endpoints):
        there = [flight for flight in state.flights if flight.at % state.endpoints == at]
        queued = sum(flight.prompt for flight in there if flight.generated is None) + state.queued[at]
        hit = min(state.cached_blocks[at], len(request.block_hashes)) * BLOCK
        batch = len(there) + bool(state.queued[at])
        expected.append((queued + request.prompt_tokens - hit) * (batch + 1))
    assert costs(LMetric(), state, request, handoff_s=None) == pytest.approx(expected)


def test_an_idle_endpoint_still_tells_cached_from_uncached() -> None:
    """The +1: with BS alone both would cost 0."""
    state = State(endpoints=2, role=Role.FLEXIBLE, cached_blocks=(40, 0))
    assert costs(LMetric(), state, ask(1000), handoff_s=None) == [1000 - 640, 1000]


def test_phase_one_compares_the_classes_share_with_its_holders() -> None:
    """Eq. 2: x / (1 - x) > |M| / |not M|; without anybody else there is no alarm."""
    detector = HotspotDetector()
    for number in range(100):
        detector.arrived(7 if number < 30 else None, 1.0)
    assert detector.share(7) == pytest.approx(0.3)
    assert detector.alarmed(7, 1, 3)  # 3/7 > 1/3
    assert not detector.alarmed(7, 1, 2)  # 3/7 < 1/2
    assert not detector.alarmed(7, 4, 0)
    assert not detector.alarmed(7, 0, 4)


def test_phase_two_waits_for_a_run_of_more_than_twice_the_holders() -> None:
    """2 |M| + 1 requests in a row that cost less on M; one that does not begins the run anew."""
    detector = HotspotDetector()
    for _ in range(10):
        detector.arrived(7, 1.0)
    for _ in range(2):
        detector.placed(7, HELD, COLD)
    assert not detector.filtered(7, HELD)
    detector.placed(7, HELD, COLD[::-1])
    for _ in range(2):
        detector.placed(7, HELD, COLD)
    assert not detector.filtered(7, HELD)
    detector.placed(7, HELD, COLD)
    assert detector.filtered(7, HELD)


def test_the_filter_ends_when_the_share_is_one_that_the_holders_can_take() -> None:
    """After the window the class is forgotten, and a share below |M| clears the run."""
    detector = HotspotDetector(window_s=60.0)
    for _ in range(10):
        detector.arrived(7, 1.0)
    for _ in range(3):
        detector.placed(7, HELD, COLD)
    assert detector.filtered(7, HELD)
    for _ in range(90):
        detector.arrived(None, 2.0)
    assert not detector.filtered(7, HELD)
    detector.placed(7, HELD, COLD)
    for _ in range(90):
        detector.arrived(7, 3.0)
    assert not detector.filtered(7, HELD)
    detector.arrived(None, 200.0)
    assert detector.share(7) == 0.0


def director(policy: LMetric) -> Director:
    made = Director(DirectorSettings(prefill=policy, decode=policy, profiles=SHIPPED_PROFILES))
    for name in ("f0", "f1", "f2", "f3"):
        endpoint = Endpoint(EndpointId(name), f"{name}:1", Role.FLEXIBLE, profile="h20-qwen3-32b")
        made.on_event(EndpointObserved(endpoint), 0.0)
    return made


def flood(made: Director, count: int = 60) -> list[str]:
    """One prefix in nearly every request, each served and never ended: a hotspot in the making."""
    chosen = []
    for number in range(count):
        blocks = tuple(range(100)) if number % 10 else (10_000 + number,)
        request = Request(RequestId(f"r{number}"), 1616, block_hashes=blocks, block_size=BLOCK)
        effects = made.on_event(RequestArrived(request), number / 10)
        chosen.append(str(only_dispatch(effects).decode.id))
        made.on_event(FirstToken(request.id), number / 10 + 0.05)
    return chosen


def test_a_synthetic_hotspot_is_spread_by_the_filter_only() -> None:
    """The product alone sends a hot prefix to its holder until its batch outweighs the cache a hundredfold."""
    piled = flood(director(LMetric(hotspot_filter=False)))
    spread = flood(director(LMetric()))
    assert max(piled.count(name) for name in set(piled)) > 45
    assert max(spread.count(name) for name in set(spread)) < 25
