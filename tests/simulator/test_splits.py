"""Requests that are cut: every token once, all blocks back, and the same run whichever way the engines are computed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model.segments import Segment
from ballast_core.policies.partition.protocol import Plan, Planner
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.book import Book
from ballast_core.state.view import View
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.requests.gaps import TokenGaps
from ballast_sim.simulation.requests.records import Record
from ballast_sim.simulation.requests.splits import Leg, Split, leg_of
from ballast_sim.simulation.world.links import Computed, Link
from tests.simulator.test_fleet_simulation import Job
from tests.support.core_builders import endpoint

pytestmark = pytest.mark.rotating(4, each=True)

SMALL = replace(
    SHIPPED_PROFILES["a100-qwen3-14b"], name="small", kv_tokens=4096, max_num_batched_tokens=256, max_num_seqs=8
)
FLEET = parse_shape("3F@small", profiles={"small": SMALL})


@dataclass(frozen=True, slots=True)
class Cutting:
    """Cuts each request where it is told: at shares of its prompt (0 to 1) and of 64 output tokens (1 to 2)."""

    cuts: tuple[tuple[float, ...], ...]
    type: ClassVar[str] = "cutting"
    needs: ClassVar[Belief] = Belief.NONE

    def planner(self) -> Planner:
        return self

    def plan(self, view: View, book: Book) -> Plan | None:
        index, prompt = int(view.request.id), view.request.prompt_tokens
        shares = self.cuts[index % len(self.cuts)]
        ends = sorted({max(1, round(prompt * min(share, 1) + 64 * max(share - 1, 0))) for share in shares})
        places = [view.endpoints[(index + at) % len(view.endpoints)] for at in range(len(ends) + 1)]
        return Plan(tuple(Segment(place, end) for place, end in zip(places, [*ends, None], strict=True)))


def cut_up(
    jobs: Sequence[Job],
    cuts: Sequence[Sequence[float]],
    *,
    stepwise: bool = False,
    around: FleetSettings | None = None,
    tbt_limit_s: float | None = None,
    used: dict[float, float] | None = None,
    learn: Belief = Belief.NONE,
) -> Fleet:
    """A run of three flexible endpoints in which requests are cut, ended and checked.

    `used` gets the share of KV in use on the first endpoint, by second.
    """
    placement = build_placement("least-requests")
    partition = Cutting(tuple(map(tuple, cuts)))
    made = DirectorSettings(
        prefill=placement, decode=placement, partition=partition, learn=learn, profiles=SHIPPED_PROFILES
    )
    fleet = Fleet(FLEET, made, around, stepwise=stepwise, tbt_limit_s=tbt_limit_s)
    fleet.load(jobs)
    if used is not None:
        fleet.every(1.0, lambda: used.update({fleet.kernel.now_s: _kv_in_use(fleet)}))
    fleet.run()
    fleet.world.check_blocks()
    assert not len(fleet.director.ledger)
    return fleet


def _kv_in_use(fleet: Fleet) -> float:
    observation = fleet.world.observe()[0][1]
    assert observation is not None
    return observation.kv_usage_ratio


JOBS = st.lists(
    st.builds(
        Job,
        arrival_s=st.floats(0, 6, allow_nan=False),
        input_tokens=st.integers(1, 700),
        output_tokens=st.integers(1, 90),
        hash_ids=st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=3),
        block_size=st.just(256),
    ),
    min_size=1,
    max_size=14,
).map(lambda jobs: sorted(jobs, key=lambda job: job.arrival_s))
CUTS = st.lists(st.lists(st.floats(0, 2, allow_nan=False), max_size=2), min_size=1, max_size=6)


AROUND = st.builds(
    FleetSettings,
    cut_tokens=st.sampled_from(["streams", "at-cut"]),
    kv_transfer=st.sampled_from(["whole", "chunked"]),
    known_limits=st.booleans(),
)


@given(JOBS, CUTS, AROUND, st.sampled_from([Belief.NONE, Belief.LENGTHS | Belief.STEP_TIMES | Belief.PROGRESS]))
@settings(max_examples=80, deadline=None)
def test_no_token_is_lost_and_stepping_changes_nothing(
    jobs: list[Job], cuts: list[list[float]], around: FleetSettings, learn: Belief
) -> None:
    """Random cuts into up to three: all tokens come, once, at the same times however the engines are computed."""
    coarse, stepped = (
        cut_up(jobs, cuts, stepwise=stepwise, around=around, tbt_limit_s=0.05, learn=learn)
        for stepwise in (False, True)
    )
    for record, other, job in zip(coarse.records, stepped.records, jobs, strict=True):
        assert record.completed
        assert record.generated_tokens == job.output_tokens
        assert replace(record, split=None) == replace(other, split=None)
    assert coarse.gaps.count == sum(job.output_tokens - 1 for job in jobs)
    coarse_figures, stepped_figures = (summarise(fleet, Objective(tbt_s=0.05)) for fleet in (coarse, stepped))
    for name in ("completed", "ttft_s", "e2e_s", "goodput_tok_s", "tbt_late_ratio", "segments_run", "kv_hidden_ratio"):
        assert coarse_figures[name] == stepped_figures[name]
    assert coarse.gaps.late == stepped.gaps.late == sum(record.late_gaps for record in coarse.records)


def test_a_leg_is_what_vllm_can_be_asked_for() -> None:
    """100 prompt tokens, 40 to come, cut at 60, 100 and 120: what each endpoint computes and what it pulls."""
    segments = [Segment(endpoint(name), end) for name, end in (("a", 60), ("b", 100), ("c", 120), ("d", None))]
    legs = [leg_of(segments, at, prompt_tokens=100, output_tokens=40) for at in range(4)]
    assert legs == [
        Leg(60, 0, 1, None, hold=True, decodes=False),
        Leg(100, 60, 1, None, hold=True, decodes=False),
        Leg(100, 100, 20, None, hold=True, decodes=True),
        Leg(120, 119, 20, None, hold=False, decodes=True),
    ]


def test_a_request_may_end_before_its_cut() -> None:
    """By a stop token that nobody foresaw the engine holds KV in vain; by its limit nobody asks it to."""
    segments = [Segment(endpoint("a"), 160), Segment(endpoint("b"), None)]
    unforeseen = leg_of(segments, 0, prompt_tokens=100, output_tokens=40)
    assert (unforeseen.max_tokens, unforeseen.stop_after, unforeseen.hold) == (60, 40, True)
    limited = leg_of(segments, 0, prompt_tokens=100, output_tokens=40, limit_tokens=40)
    assert (limited.max_tokens, limited.hold) == (40, False)


@pytest.mark.parametrize("ends", [(), (None, None), (5, 5, None), (9, 5, None), (0, None), (5, 6)])
def test_cuts_that_do_not_rise_are_refused(ends: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="segments: ends must rise"):
        Split(tuple(Segment(endpoint("a"), end) for end in ends))


def test_kv_held_in_vain_stays_until_its_lease_ends() -> None:
    """A request that ends before its cut: its blocks are in use for 30 s more, and come back."""
    used: dict[float, float] = {}
    jobs = [Job(0.0, 640, 10), *(Job(second, 16, 2) for second in range(10, 60, 10))]
    fleet = cut_up(jobs, [[1.9], [], [], [], [], []], around=FleetSettings(known_limits=False), used=used)
    assert [record.completed for record in fleet.records] == [True] * 6
    assert used[5] >= 649 / 4096
    assert used[29] >= 649 / 4096
    assert used[45] == 0
    limited = dict[float, float]()
    cut_up(jobs, [[1.9], [], [], [], [], []], around=FleetSettings(known_limits=True), used=limited)
    assert limited[5] == 0


def test_a_cut_in_the_decode_streams_or_comes_at_the_cut() -> None:
    """The same tokens; on stock vLLM the client waits for the whole first leg."""
    job = [Job(0.0, 300, 60)]
    (first,) = cut_up(job, [[1.5]], around=FleetSettings(cut_tokens="streams")).records
    (late,) = cut_up(job, [[1.5]], around=FleetSettings(cut_tokens="at-cut")).records
    assert first.first_token_s is not None
    assert late.first_token_s is not None
    assert late.first_token_s > first.first_token_s + 31 * 0.02
    assert first.last_token_s == late.last_token_s


def test_the_second_leg_computes_what_the_first_left_of_the_prompt() -> None:
    """Cut at half of the prompt: half is computed here, half there, and the first token comes from the second."""
    (record,) = cut_up([Job(0.0, 600, 5)], [[0.5]]).records
    law, link = SMALL, Link.between(SMALL, SMALL)
    first_s = law.step_s(256, 0, 256 * 128, 0) + law.step_s(44, 0, 44 * (256 + 22), 0)
    second_s = law.step_s(256, 0, 256 * (300 + 128), 0) + law.step_s(44, 0, 44 * (556 + 22), 0)
    assert record.ttft_s == pytest.approx(first_s + link.whole_s(300) + second_s)


def test_chunks_hide_what_the_link_can_carry_while_the_source_computes() -> None:
    """600 tokens in chunks of 100, steps at 1, 2 and 3 s: what is left is the last step's, or the link's backlog."""
    computed = Computed(((1.0, 256), (2.0, 512), (3.0, 600), (3.0, 600)), 3)
    assert computed.arrives_s(Link(0.5, 0.001), 0, 600, 100) == pytest.approx(3.1)
    assert computed.arrives_s(Link(0.5, 0.01), 0, 600, 100) == pytest.approx(1.5 + 6.0)
    assert computed.arrives_s(Link(0.5, 0.001), 500, 100, 100) == pytest.approx(3.6)
    decoding = Computed(((1.0, 100), (11.0, 200)), 1)
    assert decoding.arrives_s(Link(0.0, 0.001), 0, 200, 50) == pytest.approx(11.05)


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.integers(1, 300)), min_size=1, max_size=6),
    st.integers(1, 700),
    st.floats(1e-6, 1e-2),
)
def test_chunked_transfer_is_never_faster_than_the_link_nor_slower_than_whole(
    steps: list[tuple[float, int]], chunk: int, s_per_token: float
) -> None:
    at_s, tokens, points = 0.0, 0, []
    for gap_s, count in steps:
        at_s, tokens = at_s + gap_s, tokens + count
        points.append((at_s, tokens))
    link = Link(0.005, s_per_token)
    arrives_s = Computed((*points, (at_s, tokens)), len(points)).arrives_s(link, 0, tokens, chunk)
    assert arrives_s <= at_s + link.whole_s(tokens) + 1e-9
    assert arrives_s >= at_s + s_per_token * ((tokens - 1) % chunk + 1) - 1e-9
    assert arrives_s >= link.whole_s(tokens) - 1e-9


def test_gaps_are_what_the_tokens_say() -> None:
    """Percentiles of the run's gaps against all token times of one request, to the width of a bin."""
    rng = random.Random(1)
    jobs = [Job(rng.uniform(0, 3), rng.randint(10, 600), rng.randint(2, 60)) for _ in range(20)]
    fleet = cut_up(jobs, [[], [0.5], [1.2, 1.4]], stepwise=True)
    figures = fleet.gaps.distribution({"p50": 50.0, "p99": 99.0})
    mean_s = figures["mean"]
    assert mean_s is not None
    total_s = sum((record.last_token_s or 0) - (record.first_token_s or 0) for record in fleet.records)
    assert mean_s * fleet.gaps.count == pytest.approx(total_s)


def test_gaps_of_requests_that_decode_together_are_those_of_each_by_itself() -> None:
    """Steps that several requests share are put into bins once: as often as token by token, and late as often."""
    rng = random.Random(2)
    ends_s = [0.0]
    for _ in range(300):
        ends_s.append(ends_s[-1] + rng.uniform(0.0, 0.2))
    stretches = [sorted(rng.sample(range(301), 2)) for _ in range(20)] + [[5, 5], [7, 8]]
    together, alone = TokenGaps(0.1), TokenGaps(0.1)
    for number, (start, stop) in enumerate(stretches):
        first, second = Record(number, 0.0, 1, 1), Record(number, 0.0, 1, 1)
        if number % 2:
            together.token(first, ends_s[start] - 0.05)
            alone.token(second, ends_s[start] - 0.05)
        together.steps(first, ends_s, start, stop)
        for at_s in ends_s[start:stop]:
            alone.token(second, at_s)
        assert (first.late_gaps, first.newest_token_s) == (second.late_gaps, second.newest_token_s)
    ends_s.append(ends_s[-1] + 5.0)  # a step that no request took part in
    shares = {f"p{share}": float(share) for share in range(1, 100)}
    one, other = together.distribution(shares), alone.distribution(shares)
    assert one.pop("mean") == pytest.approx(other.pop("mean"))
    assert one == other
    assert (together.count, together.late_ratio) == (alone.count, alone.late_ratio)
