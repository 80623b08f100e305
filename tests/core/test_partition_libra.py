"""Libra's search: figure 5, a plain transcription, what is best among all cuts, and when requests stay whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Outcome, Request, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch
from ballast_core.model.events import (
    EndpointObserved,
    FirstToken,
    Progress,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
    SegmentDone,
)
from ballast_core.policies.partition.forecast import Forecast, Rules, outstanding, pace
from ballast_core.policies.partition.libra import Libra, LibraPlanner, Probe, search
from ballast_core.policies.partition.timeline import Pace, Part, Timeline
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.profiles import A100_QWEN3_32B, SHIPPED_PROFILES, HardwareProfile
from tests.support.core_builders import only_dispatch
from tests.support.virtual_endpoint import OneEndpoint
from tests.support.virtual_endpoint import Part as Plain

FIGURE_5 = replace(A100_QWEN3_32B, d_ms_per_token=0.17, k_ms_per_kv_token=2e-5)
"""Fitted to the figure's four rates, with 36 requests at a time: 5.6 and 1.65 at 1024, 2.7 and 2.4 at 1358."""


def halves(position: int, prompt: int = 1024, output: int = 1024) -> tuple[Part, Part]:
    """The two parts of a request of 1,024 and 1,024 tokens."""
    first = Part(min(position, prompt), max(position - prompt, 0), 0)
    return first, Part(max(prompt - position, 0), prompt + output - max(position, prompt), position)


def rates(law: HardwareProfile, most: int, position: int) -> list[float]:
    """Requests a second of both endpoints, where all of 200 are cut here."""
    limits = Pace(law, law, max_requests=most)
    return [200 / Timeline([part] * 200, limits).end_s for part in halves(position)]


def cuts_of_a_burst(law: HardwareProfile, most: int, probes: int) -> list[int]:
    """Cuts of 200 requests that come one after the other to one pair, first parts always to the same endpoint."""
    limits, ahead, cuts = Pace(law, law, max_requests=most), (list[Part](), list[Part]()), list[int]()
    for _ in range(200):
        first, second = (Timeline(queue, limits) for queue in ahead)

        def predict(position: int, one: Timeline = first, other: Timeline = second) -> Probe:
            parts = halves(position)
            return Probe(position, one.end_with_s(parts[0]), other.end_with_s(parts[1]))

        found = search(0.5, 2048, predict, max_probes=probes, eps_s=0.01, highest=2047)
        cuts.append(min(found, key=lambda probe: probe.gap_s).position)
        for queue, part in zip(ahead, halves(cuts[-1]), strict=True):
            queue.append(part)
    return cuts


def test_figure_5_rates() -> None:
    """The fitted law gives the paper's four numbers within 8 %."""
    assert rates(FIGURE_5, 36, 1024) == pytest.approx([5.6, 1.7], rel=0.08)
    assert rates(FIGURE_5, 36, 1358) == pytest.approx([2.5, 2.5], rel=0.08)


def test_figure_5_cut() -> None:
    """Where both endpoints have as much to do the search cuts within 3 % of the paper's 1358; they then are as fast."""
    cuts = cuts_of_a_burst(FIGURE_5, 36, 12)
    steady = sum(cuts[100:]) / 100
    assert steady == pytest.approx(1358, rel=0.03)
    one, other = rates(FIGURE_5, 36, round(steady))
    assert one == pytest.approx(other, rel=0.02)
    assert min(one, other) > 1.4 * rates(FIGURE_5, 36, 1024)[1]


def test_the_shipped_profile_cuts_beyond_the_prompt_too() -> None:
    """Qwen3-32B on two A100, 40 requests at a time: 5.7 and 1.7 at 1024, and some 1,400 in balance."""
    assert rates(A100_QWEN3_32B, 40, 1024) == pytest.approx([5.7, 1.7], rel=0.02)
    cuts = cuts_of_a_burst(A100_QWEN3_32B, 40, 12)
    assert sum(cuts[100:]) / 100 == pytest.approx(1407, abs=20)


def figure_5_line(position: int) -> Probe:
    """Seconds a request and endpoint as the four rates say, straight lines between them."""
    first = 1 / 5.6 + max(position - 1024, 0) * (1 / 2.5 - 1 / 5.6) / (1358 - 1024)
    return Probe(position, first, (2048 - position) * (1 / 2.5) / (2048 - 1358))


def test_six_probes_find_the_balance_of_figure_5() -> None:
    """Bisection of the half beyond the prompt: six probes are as near as a sixteenth of that half."""
    found = search(0.5, 2048, figure_5_line, max_probes=6, eps_s=0.0, highest=2047)
    assert [probe.position for probe in found] == [1024, 1536, 1280, 1408, 1344, 1376]
    best = min(found, key=lambda probe: probe.gap_s)
    assert best.position == 1344
    many = search(0.5, 2048, figure_5_line, max_probes=20, eps_s=0.0, highest=2047)
    assert min(many, key=lambda probe: probe.gap_s).position == 1358


def transcribed(prompt: int, length: int, times: dict[int, tuple[float, float]], most: int, eps_s: float) -> list[int]:
    """Algorithm 1, lines 3 to 10, as printed."""
    phi, low, high, tried = prompt / length, 0.0, (length - 1) / length, []
    for _ in range(most):
        split = min(max(math.ceil(phi * length - 1e-9), 1), length - 1)
        tried.append(split)
        first, second = times[split]
        if abs(first - second) <= eps_s:
            break
        low, high = (low, phi) if first > second else (phi, high)
        phi = (low + high) / 2
    return tried


@given(
    st.tuples(st.integers(1, 200), st.integers(1, 200)),
    st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 3.0)),
    st.floats(0.0, 0.5),
    st.data(),
)
def test_search_is_algorithm_1(
    asked: tuple[int, int], loads_s: tuple[float, float], eps_s: float, data: st.DataObject
) -> None:
    """The same cuts in the same order, and with enough probes the best one of all of them."""
    (prompt, output), (one_s, other_s) = asked, loads_s
    length = prompt + output
    shares = data.draw(st.lists(st.floats(0.001, 1.0), min_size=length, max_size=length))
    before = [sum(shares[:position]) for position in range(length + 1)]
    times = {each: (one_s + before[each], other_s + before[length] - before[each]) for each in range(length + 1)}

    def predict(position: int) -> Probe:
        return Probe(position, *times[position])

    found = search(prompt / length, length, predict, max_probes=6, eps_s=eps_s, highest=length - 1)
    expected = transcribed(prompt, length, times, 6, eps_s)
    assert [probe.position for probe in found] == list(dict.fromkeys(expected))
    many = search(prompt / length, length, predict, max_probes=60, eps_s=0.0, highest=length - 1)
    gaps = [abs(times[each][0] - times[each][1]) for each in range(1, length)]
    assert min(probe.gap_s for probe in many) == pytest.approx(min(gaps))


# --- the policy -----------------------------------------------------------------------------------------------------


def fleet(policy: Libra, endpoints: int = 2) -> Director:
    """Flexible A100 pairs."""
    placement = LeastRequests()
    made = Director(DirectorSettings(prefill=placement, decode=placement, partition=policy, profiles=SHIPPED_PROFILES))
    for name in (f"f{k}" for k in range(endpoints)):
        made.on_event(
            EndpointObserved(Endpoint(EndpointId(name), f"{name}:8000", Role.FLEXIBLE, profile="a100-qwen3-32b")), 0.0
        )
    return made


def come(d: Director, name: str, now_s: float = 0.0, prompt: int = 1024, output: float = 1024) -> Dispatch:
    request = Request(RequestId(name), prompt, max_output_tokens=8192, expected_output_tokens=output)
    return only_dispatch(d.on_event(RequestArrived(request), now_s))


def ends(dispatch: Dispatch) -> list[tuple[str, int | None]]:
    return [(segment.endpoint.id, segment.end_tokens) for segment in dispatch.segments]


def test_requests_are_cut_where_whole_they_would_not_balance() -> None:
    """The first one meets idle endpoints, its twin goes to the other one; a third one is longer than a difference."""
    d = fleet(Libra())
    assert ends(come(d, "a")) == []
    twin = come(d, "b")
    assert (ends(twin), twin.decode.id) == ([], "f1")
    (first, cut), (second, last) = ends(come(d, "c", output=3000))
    assert {first, second} == {"f0", "f1"}
    assert last is None
    assert cut is not None
    assert cut > 1024


def test_balance_within_eps_leaves_requests_whole() -> None:
    """A short request on an endpoint that is done a little earlier than the other."""
    d = fleet(Libra(eps_s=100.0))
    come(d, "a")
    assert ends(come(d, "b")) == []
    whole = come(fleet(Libra(eps_s=100.0)), "a")
    assert whole.decode.id == "f0"


def test_the_plan_is_the_best_of_its_probes_and_no_worse_than_whole() -> None:
    """The erratum: line 11 commits what was probed last."""
    d = fleet(Libra())
    come(d, "a")
    come(d, "b", prompt=100, output=3000)
    candidates = d.inventory.candidates(Stage.DECODE)
    request = Request(RequestId("new"), 700, expected_output_tokens=300)
    view = d.placer.view(Stage.DECODE, request, candidates, 1.0)
    assert isinstance(d.partitioner, Partitioner)
    book = d.partitioner.book
    plan = Libra().planner().plan(view, book)
    assert plan is not None
    now = [Timeline(outstanding(view, book, at), pace(view, at, Rules())) for at in range(2)]
    whole = [abs(now[at].end_with_s(Part(700, 320, 0)) - now[1 - at].end_s) for at in range(2)]
    assert plan.gap_s <= min(whole)
    assert plan.probes <= 2 * (6 + 1)
    assert plan.length_tokens == 1020


def test_cuts_within_the_prompt_where_the_client_streams() -> None:
    """Never beyond it, and at multiples of the block or at its end."""
    d = fleet(Libra(cuts="prompt", block_tokens=16, eps_s=0.0), 4)
    cuts = 0
    for k in range(30):
        for _, end in ends(come(d, f"r{k}", 0.05 * k, prompt=1000 + 37 * k, output=10.0 + 50 * (k % 3)))[:-1]:
            assert end is not None
            assert end <= 1000 + 37 * k
            assert end % 16 == 0 or end == 1000 + 37 * k
            cuts += 1
    assert cuts >= 10


def test_three_segments_with_a_relaxed_slo_while_it_thinks() -> None:
    """Prefill, thinking and answer; neighbours are different endpoints."""
    d = fleet(Libra(segments=3, think_ratio=0.75, think_tbt_slo_s=0.3, margin_tokens=0), 3)
    come(d, "a")
    dispatch = come(d, "b", output=1000.0)
    assert [end for _, end in ends(dispatch)] == [1024, 1774, None]
    assert [segment.tbt_slo_s for segment in dispatch.segments] == [None, 0.3, None]
    names = [name for name, _ in ends(dispatch)]
    assert names[0] != names[1] != names[2]
    assert dispatch.prefill is not None
    d.on_event(SegmentDone(RequestId("b"), 0), 1.0)
    d.on_event(FirstToken(RequestId("b")), 1.1)
    d.on_event(SegmentDone(RequestId("b"), 750), 9.0)
    d.on_event(RequestEnded(RequestId("b"), Outcome.COMPLETED, 1000), 12.0)
    assert isinstance(d.partitioner, Partitioner)
    assert list(d.partitioner.book) == ["a"]


def test_a_request_may_say_how_long_it_thinks() -> None:
    """The second cut is there; a request that says that it does not think is cut in two."""
    for thinking, cuts in ((300.0, [1024, 1324]), (0.0, []), (5000.0, [])):
        d = fleet(Libra(segments=3), 3)
        come(d, "a")
        request = Request(
            RequestId("b"),
            1024,
            expected_output_tokens=1000.0,
            expected_thinking_tokens=thinking,
            max_output_tokens=2000,
        )
        dispatch = only_dispatch(d.on_event(RequestArrived(request), 0.0))
        found = [end for _, end in ends(dispatch)[:-1]]
        assert found == cuts if cuts else len(found) <= 1


def test_a_long_queue_of_prompts_takes_no_first_part() -> None:
    """One endpoint has four seconds of prompts and is done first; the other one has only decodes, for much longer."""
    began = []
    for slo_s in (0.0, 1.0):
        d = fleet(Libra(ttft_slo_s=0.0))
        come(d, "decodes", prompt=1, output=4000.0)
        d.on_event(FirstToken(RequestId("decodes")), 0.0)
        come(d, "prompts", prompt=20_000, output=1.0)
        assert isinstance(d.partitioner, Partitioner)
        d.partitioner.planner = Libra(ttft_slo_s=slo_s, cuts="prompt").planner()
        dispatch = come(d, "new", prompt=2000, output=300.0)
        began.append((dispatch.prefill or dispatch.decode).id)
    assert began == ["f1", "f0"]


def test_requests_that_may_not_be_cut_are_work_too() -> None:
    """200 of them decode on f0, f1 is new: whole requests and all decodes go to f1."""
    d = fleet(Libra(cuts="prompt"), 1)
    for k in range(200):
        name = RequestId(f"whole{k}")
        d.on_event(RequestArrived(Request(name, 2000, max_output_tokens=1000, divisible=False)), 0.0)
        d.on_event(FirstToken(name), 1.0)
    d.on_event(
        EndpointObserved(Endpoint(EndpointId("f1"), "f1:8000", Role.FLEXIBLE, profile="a100-qwen3-32b")),
        2.0,
    )
    decodes = [come(d, f"r{k}", 2.0 + k * 0.01, 2000, 500.0).decode.id for k in range(10)]
    assert decodes == ["f1"] * 10


def forecast_of(director: Director) -> Forecast:
    """What the Director's planner keeps of its endpoints' future."""
    assert isinstance(director.partitioner, Partitioner)
    assert isinstance(director.partitioner.planner, LibraPlanner)
    return director.partitioner.planner.forecast


def test_what_a_request_without_a_plan_has_to_do() -> None:
    """It waits with its prompt, decodes for as long as it says, moves, and is gone: the forecast follows at once."""
    d, name = fleet(Libra()), RequestId("whole")
    assert isinstance(d.partitioner, Partitioner)
    book, forecast = d.partitioner.book, forecast_of(d)

    def parts(now_s: float) -> list[list[Part]]:
        asked = Request(RequestId("new"), 10)
        view = d.placer.view(Stage.DECODE, asked, d.inventory.candidates(Stage.DECODE), now_s)
        found = [outstanding(view, book, at) for at in range(2)]
        kept = forecast.remaining_s(view, book, Rules())
        ends = [Timeline(found[at], pace(view, at, Rules())).end_s for at in range(2)]
        assert kept.tolist() == pytest.approx(ends)
        return found

    d.on_event(RequestArrived(Request(name, 700, expected_output_tokens=300.0, divisible=False)), 0.0)
    assert parts(0.0) == [[Part(700, 300, 0)], []]
    d.on_event(FirstToken(name), 1.1)
    d.on_event(Progress(name, 40), 2.2)
    assert parts(3.3) == [[Part(0, 260, 740)], []]
    entry = d.ledger.get(name)
    assert entry is not None
    d.ledger.move(entry, 1, 3.3)
    d.partitioner.moved(entry)
    assert parts(3.3) == [[], [Part(0, 260, 740)]]
    d.on_event(RequestEnded(name, Outcome.COMPLETED, 300), 3.4)
    assert parts(3.4) == [[], []]


@pytest.mark.rotating(3)
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 800), st.integers(0, 4)), min_size=1, max_size=12),
    st.integers(1, 2000),
    st.integers(1, 500),
)
def test_forecasts_are_those_of_the_book_from_scratch(
    history: list[tuple[int, int, int]], prompt: int, output: int
) -> None:
    """After arrivals, first tokens, reports, cuts and ends: what is kept equals passes taken one by one."""
    d, now_s = fleet(Libra(), 3), 0.0
    for k, (prompt_tokens, output_tokens, then) in enumerate(history):
        now_s += 0.1
        name = RequestId(f"r{k}")
        come(d, name, now_s, prompt_tokens, output_tokens)
        if then >= 1:
            d.on_event(FirstToken(name), now_s + 0.01)
        if then == 2:
            d.on_event(Progress(name, 1 + output_tokens // 2), now_s + 0.05)
        if then == 3:
            d.on_event(SegmentDone(name, 5), now_s + 0.05)
        if then == 4:
            d.on_event(RequestEnded(name, Outcome.COMPLETED, 3), now_s + 0.05)
    assert isinstance(d.partitioner, Partitioner)
    book, forecast, now_s = d.partitioner.book, forecast_of(d), now_s + 0.1
    view = d.placer.view(Stage.DECODE, Request(RequestId("new"), prompt), d.inventory.candidates(Stage.DECODE), now_s)
    for at in range(3):
        queue, limits = outstanding(view, book, at), pace(view, at, Rules())
        part = Part(prompt, output, 0)
        plain = [Plain(each.prefill_tokens, each.decode_tokens, each.context_tokens) for each in [*queue, part]]
        OneEndpoint(plain, limits.token_budget, limits.most, limits.decoding).run()
        expected = max(each.finished_s for each in plain)
        if limits.prefill_factor == 1:
            assert forecast.timeline(view, book, at, Rules()).end_with_s(part) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("together", [False, True])
def test_recent_batches_are_learned_where_prompts_are_computed(together: bool) -> None:
    """A decode gets 40 tokens in 2 s while a prompt of 8,000 is computed: passes of 200 tokens in 50 ms."""
    for policy, learned in ((Libra(batches="recent"), True), (Libra(), False)):
        d = fleet(policy, 1)
        come(d, "decodes", prompt=100, output=500.0)
        d.on_event(FirstToken(RequestId("decodes")), 0.0)
        d.on_event(Progress(RequestId("decodes"), 10), 1.2)
        come(d, "prompt", 1.2, prompt=8000, output=500.0)
        for k in range(1, 5):
            at_s, tokens = 1.2 + 0.5 * k, 10 + 10 * k
            if together:
                d.on_event(ProgressBatch(((at_s, RequestId("decodes"), tokens),)), at_s)
            else:
                d.on_event(Progress(RequestId("decodes"), tokens), at_s)
        d.on_event(FirstToken(RequestId("prompt")), 3.2)
        seen = d.placer.view(Stage.DECODE, Request(RequestId("new"), 10), d.inventory.candidates(Stage.DECODE), 3.2)
        found = seen.beliefs.batches.composition(int(seen.slots[0]), A100_QWEN3_32B)
        assert (found is not None) == learned
        if found is not None:
            assert found.prompt_tokens == pytest.approx(200, rel=0.02)
            limits = pace(seen, 0, Rules(batches="recent", kv_memory=True))
            assert (limits.prompt_tokens, limits.prefill_factor) == (found.prompt_tokens, found.factor)
            assert limits.kv_tokens == SHIPPED_PROFILES["a100-qwen3-32b"].kv_tokens


def test_numbers_that_cannot_be_are_refused() -> None:
    """The message names the field."""
    for wrong, message in (
        ({"max_probes": 0}, "max_probes: must be from 1 to 64, not 0"),
        ({"eps_s": -1.0}, "eps_s: must be finite and 0 or more, not -1"),
        ({"ttft_slo_s": -1.0}, "ttft_slo_s: must be finite"),
        ({"block_tokens": 0}, "block_tokens: must be from 1 to 65536"),
        ({"block_tokens": 10**12}, "block_tokens: must be from 1 to 65536"),
        ({"max_probes": 10**9}, "max_probes: must be from 1 to 64"),
        ({"segments": 4}, "segments: must be 2 or 3, not 4"),
        ({"think_ratio": 1.0}, "think_ratio: must be above 0 and below 1"),
        ({"segments": 3, "cuts": "prompt"}, "segments: 3 cut the output"),
    ):
        with pytest.raises(ValueError, match=message):
            Libra(**wrong)
