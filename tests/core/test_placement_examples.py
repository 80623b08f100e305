"""A worked example for every placement: a small state, and costs computed by hand from the formula in its docstring."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ballast_core.model import Request, Role, Stage
from ballast_core.policies.placement.ballast import Ballast
from ballast_core.policies.placement.lmetric import LMetric
from ballast_core.policies.placement.registry import ALL_PLACEMENTS
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from tests.support.placement_states import NOW_S, PROMPT_BLOCKS, Flight, State, ask, build, costs

INF = math.inf


def profile(name: str, *, a_ms: float = 1e-6, d_ms: float = 0.0, b_ms: float = 0.0) -> HardwareProfile:
    """Hardware with round numbers: `a` a step, or `d` a token, `b` a decode; attention and KV reads cost nothing."""
    return HardwareProfile(
        name=name,
        overhead_ms=0.0,
        a_ms=a_ms,
        d_ms_per_token=d_ms,
        k_ms_per_kv_token=0.0,
        s_ms_per_pair=0.0,
        b_ms_per_seq=b_ms,
        kv_tokens=200_000,
        kv_bytes_per_token=131_072,
    )


PROFILES: Mapping[str, HardwareProfile] = {
    **SHIPPED_PROFILES,
    "1000/s": profile("1000/s", d_ms=1.0),
    "4000/s": profile("4000/s", d_ms=0.25),
    "8000/s": profile("8000/s", d_ms=0.125),
    "9000/s": profile("9000/s", d_ms=1 / 9),
    "16 ms": profile("16 ms", a_ms=16.0, b_ms=0.05),
    "1 ms a decode": profile("1 ms a decode", b_ms=1.0),
}


def fleet(
    *hardware: str,
    flights: Sequence[Flight] = (),
    queued: Sequence[int] = (),
    cached_blocks: Sequence[int] = (),
) -> State:
    """Endpoints on this hardware that prefill and decode."""
    return State(
        endpoints=len(hardware),
        role=Role.FLEXIBLE,
        hardware=hardware,
        profiles=PROFILES,
        flights=flights,
        queued=queued,
        cached_blocks=cached_blocks,
    )


def requests(*counts: int) -> list[Flight]:
    """So many requests that decode on each endpoint, 100 tokens each."""
    return [Flight(at=at) for at, count in enumerate(counts) for _ in range(count)]


@dataclass(frozen=True)
class Example:
    """A policy, what it is shown, and what it must say."""

    type: str
    state: State
    expected: Sequence[float]
    parameters: Mapping[str, object] = field(default_factory=dict)
    request: Request = field(default_factory=lambda: ask(1000, blocks=False))
    stage: Stage = Stage.DECODE
    handoff_s: float | None = 0.5
    label: str = ""


def typed(policy: str, **parameters: object) -> dict[str, object]:
    """A policy inside of another one."""
    return {"type": policy, "parameters": parameters}


H20 = ("h20-qwen3-32b",)

EXAMPLES = (
    # No cost at all: turns are the Director's.
    Example("round-robin", State(flights=requests(3, 1, 2)), [0, 0, 0]),
    # Requests (9, 1, 4); this request draws the first and the third.
    Example("power-of-two", State(flights=requests(9, 1, 4)), [9, INF, 4], request=ask(name="request-0")),
    Example("least-requests", State(flights=requests(3, 1, 2)), [3, 1, 2]),
    # 2 decoding and 3 pending against 3 decoding: pending ones do not count.
    Example(
        "least-requests-running",
        State(endpoints=2, flights=[*requests(2, 3), *[Flight(at=0, generated=None)] * 3]),
        [2, 3],
    ),
    # Prompt and output so far: 850 + 50; 400 pending; 600 + 100.
    Example(
        "least-tokens",
        State(
            flights=[
                Flight(at=0, prompt=850, generated=50),
                Flight(at=1, prompt=400, generated=None),
                Flight(at=2, prompt=600, generated=100),
            ]
        ),
        [900, 400, 700],
    ),
    # Decoding 900 and 400; 5,000 pending on the second are not seen.
    Example(
        "ils",
        State(
            endpoints=2,
            flights=[
                Flight(at=0, prompt=850, generated=50),
                Flight(at=1, prompt=400),
                Flight(at=1, prompt=5000, generated=None),
            ],
        ),
        [900, 400],
    ),
    # 4 x 2 + 1 and 4 x 0 + 8.
    Example("vllm-jsq", State(endpoints=2, observed=((2, 1), (0, 8))), [9, 8]),
    # (8000 + 0) / 8000 and (0 + 1024) / 4000.
    Example(
        "least-uncached-tokens",
        fleet("8000/s", "4000/s", queued=(8000, 0), cached_blocks=(64, 0)),
        [1.0, 0.256],
        request=ask(1024),
        handoff_s=None,
    ),
    # 0.7 x (1 - 0.5) + 0.3 x 4 / 4, and 0.7 x 1 + 0.3 x 2 / 4.
    Example(
        "linear-kv",
        State(endpoints=2, flights=requests(4, 2), cached_blocks=(16, 0)),
        [0.65, 0.85],
        request=ask(512),
    ),
    # 6 - 3 <= 4, so the most cached: 0 x 7 + 6, and 512 x 7 + 3.
    Example(
        "range-filter-kv",
        State(endpoints=2, flights=requests(6, 3), cached_blocks=(32, 0)),
        [6, 3587],
        {"max_range": 4},
        ask(512),
        label="cache",
    ),
    # 8 - 3 > 4, so the fewest requests.
    Example(
        "range-filter-kv",
        State(endpoints=2, flights=requests(8, 3), cached_blocks=(32, 0)),
        [8, 3],
        {"max_range": 4},
        ask(512),
        label="load",
    ),
    # P (100, 300 + 100), T (900, 300): 0.5 x 100 / 400 + 0.5 x 900 / 900, and 0.5 x 1 + 0.5 x 300 / 900.
    Example(
        "dynamo-cost",
        fleet(*H20 * 2, flights=[Flight(at=0, prompt=900)], queued=(0, 300)),
        [0.625, 2 / 3],
        request=ask(100, blocks=False),
        handoff_s=None,
    ),
    # 10,800 / 9000 + 900 / 9000, and 900 / 1000.
    Example(
        "predicted-ttft",
        fleet("9000/s", "1000/s", queued=(10_800, 0)),
        [1.3, 0.9],
        request=ask(900, blocks=False),
        handoff_s=None,
        label="prefill",
    ),
    # Hand-off in 0.5 s, then a step of 4 and of 1 decodes, 1 ms each.
    Example(
        "predicted-ttft",
        fleet("1000/s", "1000/s", flights=requests(3, 0)),
        [0.504, 0.501],
        label="decode",
    ),
    # P (800 + 200, 200), BS (1, 8): 1000 x 2 and 200 x 9.
    Example(
        "lmetric",
        fleet(*H20 * 2, flights=requests(0, 8), queued=(800, 0)),
        [2000, 1800],
        request=ask(200, blocks=False),
        handoff_s=None,
    ),
    # Type 1: 61 tokens in 2 s, v = (60 + 30) / (2 + 1) = 30; by tau 61 + 30 x 2; M = 1000 + 121.
    # Type 2: there 1.5 s before tau, M = 200 + 1.5 x 30. Type 3: 2 s after it, M = 300 - 2 x 30; 58 s after it, 0.
    Example(
        "sibyl",
        State(
            endpoints=4,
            flights=[
                Flight(at=0, prompt=1000, generated=61, decoding_s=2.0),
                Flight(at=1, prompt=200, generated=None, due_s=0.5),
                Flight(at=2, prompt=300, generated=None, due_s=4.0),
                Flight(at=3, prompt=300, generated=None, due_s=60.0),
            ],
        ),
        [1121, 245, 240, 0],
        {"prob_at_one": True},
        handoff_s=2.0,
        label="types",
    ),
    # Between types 2 and 3 both say l_in: at tau itself, and half a token (1/60 s) before and after it.
    Example(
        "sibyl",
        State(flights=[Flight(at=at, prompt=400, generated=None, due_s=2.0 + (at - 1) / 60) for at in range(3)]),
        [400.5, 400, 399.5],
        {"prob_at_one": True},
        handoff_s=2.0,
        label="boundary",
    ),
    # Survival before anything ended: S(x) = (1 + x / 512) ** -2; S(512) = 1/4 and S(1536) = 1/16; tau in 1024 / 30 s.
    # Type 1: 512 tokens at v = 30 (511 in 511 / 30 s): 512 + 1024; M = 100 + 1536, P = S(1536) / S(512) = 1/4.
    # Type 2: there 512 / 30 s before tau, g = 512: M = 200 + 512, P = S(512) = 1/4.
    Example(
        "sibyl",
        State(
            endpoints=2,
            flights=[
                Flight(at=0, prompt=100, generated=512, decoding_s=511 / 30),
                Flight(at=1, prompt=200, generated=None, due_s=512 / 30),
            ],
        ),
        [409, 178],
        handoff_s=1024 / 30,
        label="survival",
    ),
    # 50 tokens to come, alone: 50 x 16.05 ms; beside one with 30 to go: 30 x 16.1 + 20 x 16.05.
    Example(
        "libra",
        State(
            endpoints=2,
            hardware=("16 ms",),
            profiles=PROFILES,
            flights=[Flight(at=1, prompt=1000, generated=70, limit=100)],
            ended=[5000] * 400,
        ),
        [0.8025, 0.804],
        request=ask(200, limit=50, blocks=False),
        handoff_s=0.0,
        label="decode",
    ),
    # Passes of 8,192 tokens: 8,000 queued and 192 own ones, then 808; alone 1,000.
    Example(
        "libra",
        State(endpoints=2, role=Role.PREFILL, hardware=("8000/s", "4000/s"), profiles=PROFILES, queued=(8000, 0)),
        [9000 / 8000, 1000 / 4000],
        stage=Stage.PREFILL,
        label="prefill",
    ),
    # Seconds x (requests + 1): (800 + 200) / 8000 x 2 and 200 / 8000 x 9: LMetric's 2000 and 1800 over 8000.
    Example(
        "product",
        fleet("8000/s", "8000/s", flights=requests(0, 8), queued=(800, 0)),
        [0.25, 0.225],
        {"parts": [typed("least-uncached-tokens"), {**typed("least-requests"), "offset": 1}]},
        ask(200, blocks=False),
        handoff_s=None,
    ),
    # Requests (3, 1) and tokens (300, 100 + 500): 0.5 x 3 + 0.01 x 300, and 0.5 x 2 + 0.01 x 600.
    Example(
        "weighted-sum",
        State(endpoints=2, flights=[*requests(3, 1), Flight(at=1, prompt=500)]),
        [4.5, 7.0],
        {"parts": [{**typed("least-requests"), "weight": 0.5}, {**typed("least-tokens"), "weight": 0.01}]},
        label="raw",
    ),
    # The same over the largest: 0.5 x 3 / 3 + 0.5 x 300 / 600, and 0.5 x 2 / 3 + 0.5 x 1.
    Example(
        "weighted-sum",
        State(endpoints=2, flights=[*requests(3, 1), Flight(at=1, prompt=500)]),
        [0.75, 5 / 6],
        {
            "parts": [{**typed("least-requests"), "weight": 0.5}, {**typed("least-tokens"), "weight": 0.5}],
            "normalise": "largest",
        },
        label="largest",
    ),
    # Requests (3, 1, 1), tokens (300, 900, 400): the first is behind; of the tie the third has fewer tokens.
    Example(
        "lexicographic",
        State(flights=[*requests(3), Flight(at=1, prompt=900), Flight(at=2, prompt=400)]),
        [2, 1, 0],
        {"parts": [typed("least-requests"), typed("least-tokens")]},
    ),
    # Tokens (1000, 1100, 3000): within 20 % of 1000 are the first two; of these requests (2, 1).
    Example(
        "filter-then",
        State(
            flights=[
                *[Flight(at=0, prompt=500)] * 2,
                Flight(at=1, prompt=1100),
                Flight(at=2, prompt=3000),
            ]
        ),
        [2, 1, INF],
        {"first": typed("least-tokens"), "then": typed("least-requests"), "keep": "within", "ratio": 0.2},
    ),
    # Requests (1, 3) stay while 27 tokens are generated; steps with the request take 2 and 4 ms, typical 3 ms. Marginal
    # burden of a token in ms: 2 x 2 (2/3)^3 - 1 x 1 (1/3)^3 = 31/27 and 4 x 4 (4/3)^3 - 3 x 3 (3/3)^3 = 781/27.
    Example(
        "ballast",
        State(
            endpoints=2,
            hardware=("1 ms a decode",),
            profiles=PROFILES,
            flights=requests(1, 3),
            ended=[4000] * 1000,
        ),
        [0.031, 0.781],
        request=ask(1000, blocks=False, limit=27),
        label="survival",
    ),
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: f"{one.type}-{one.label}".rstrip("-"))
def test_costs_are_those_computed_by_hand(example: Example) -> None:
    """To a millionth, where the curve is tabled to a thousandth."""
    policy = build_placement(example.type, example.parameters)
    found = costs(policy, example.state, example.request, stage=example.stage, handoff_s=example.handoff_s)
    assert found == pytest.approx(example.expected, rel=1e-3 if example.label == "survival" else 1e-6)


def test_every_placement_has_an_example() -> None:
    """`random` has its own below: its hashes cannot be computed by hand."""
    assert {example.type for example in EXAMPLES} | {"random"} == set(ALL_PLACEMENTS)


def test_random_draws_lots() -> None:
    """One number on [0, 1) for each endpoint; another request draws others, the same one the same, load or not."""
    lots = costs(build_placement("random"), State(), ask(name="a"))
    assert all(0 <= lot < 1 for lot in lots)
    assert len(set(lots)) == 3
    assert costs(build_placement("random"), State(flights=requests(9, 9, 0)), ask(name="a")) == lots
    assert costs(build_placement("random"), State(), ask(name="b")) != lots


def test_ballast_ties_where_nothing_differs_and_counts_load() -> None:
    """Idle endpoints of one kind tie; each request more on one of them makes it cost more, in seconds above 0."""
    assert len(set(costs(Ballast(), State()))) == 1
    idle, few, many = costs(Ballast(), State(flights=requests(0, 5, 20)))
    assert 0 < idle < few < many


def test_lmetrics_hotspot_detector_has_two_phases() -> None:
    """One of three endpoints holds the prefix (M): phase one at x / (1 - x) > 1/2, phase two after 2 x 1 + 1 requests.

    P is (1000 - 640, 1000, 1000) and nobody is busy: the holder costs 360 until it is left out.
    """
    made = build(fleet(*H20 * 3, cached_blocks=(40, 0, 0)))
    detector, prefix, request = made.beliefs.hotspots, PROMPT_BLOCKS[0], ask(1000)
    weighed = costs(LMetric(), made, request, handoff_s=None)
    assert weighed == [360, 1000, 1000]

    def place(times: int) -> list[float]:
        for _ in range(times):
            detector.placed(prefix, *held_and_costs)
        return costs(LMetric(), made, request, handoff_s=None)

    shown = made.placer.view(Stage.DECODE, request, made.inventory.candidates(Stage.DECODE), NOW_S)
    held_and_costs = shown.matched_tokens > 0, LMetric().costs(shown, request)
    for number in range(10):  # x = 3/10: 3/7 < 1/2, no alarm however many are placed on M
        detector.arrived(prefix if number < 3 else None, NOW_S)
    assert place(5) == weighed
    detector.arrived(prefix, NOW_S)  # x = 4/11: 4/7 > 1/2, alarm
    assert place(2) == weighed  # two in a row cost less on M: not yet
    assert place(1) == [INF, 1000, 1000]  # the third one
    for _ in range(2):  # x = 4/13: 4/9 < 1/2, the filter ends
        detector.arrived(None, NOW_S)
    assert place(0) == weighed
