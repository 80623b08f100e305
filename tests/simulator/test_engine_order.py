"""Engines that follow a queue order (UniBoost, sections 3.2 to 3.4; papers/README).

1. A coarse engine takes the same steps as a stepping one.
2. Blocks are conserved, every request ends with its tokens, whatever the order.
3. First come, first served by rank is vLLM's own scheduler as long as nothing is preempted.
4. MemGuard: a request is evicted at most once for each doubling of its work, but for want of KV.
5. Nobody is overtaken by one who arrives more than b(k) later, whatever the two are.
6. Who waits, waits for a place, for KV or for tokens of the step.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ballast_core.policies.queue.orders import Fcfs, LeastAttained, ShortestJob, ShortestRemaining
from ballast_core.policies.queue.protocol import Work
from ballast_core.policies.queue.uniboost import UniBoost, most_priority_changes
from ballast_sim.engine import Batch, CoarseEngine, Engine, EngineConfig, Finished, FinishReason
from ballast_sim.engine.assembly import new_scheduler, new_state
from ballast_sim.engine.loop import EngineLoop
from ballast_sim.engine.ordering import Ordering
from ballast_sim.engine.papers.ranked import RankedPolicy
from ballast_sim.engine.papers.ranks import Ranks
from ballast_sim.engine.requests import RequestState
from ballast_sim.engine.vllm.scheduler import Scheduler
from tests.support.engine_histories import LAW, MARK_EVERY_TOKENS, PLANS, SETTINGS, History, Plan, play
from tests.support.engine_orders import ORDERINGS, SERVICE, UNIBOOSTS, NewestFirst, ordering
from tests.support.engines import STEP_S, FixedTimer, Run, config, request, started


def assert_same(one: History, other: History) -> None:
    """In all that an engine did and was."""
    assert one.steps == other.steps
    assert one.token_times_s == other.token_times_s
    assert one.ends == other.ends
    assert one.pulls == other.pulls
    assert one.loads == other.loads
    assert one.snapshots == other.snapshots


@pytest.mark.rotating(3)
@given(PLANS, SETTINGS, ORDERINGS)
@settings(deadline=None, max_examples=200)
def test_coarse_equals_stepping_to_the_last_bit(plans: list[Plan], changes: dict[str, Any], ordering: Ordering) -> None:
    """Property 1 and 2; `play` checks the blocks after every event."""
    changes = {**changes, "ordering": ordering, "tbt_slo_s": None}
    stepped = play(plans, changes, Engine)
    assert_same(play(plans, changes, lambda config, on_step: CoarseEngine(config, on_step, MARK_EVERY_TOKENS)), stepped)
    assert {end.request_id for end in stepped.ends} == {str(number) for number in range(len(plans))}
    for end in stepped.ends:
        plan = plans[int(end.request_id)]
        if end.reason is not FinishReason.ABORT:
            assert end.stats.output_tokens == min(plan.max_tokens, plan.stop_after or plan.max_tokens)
    assert not stepped.snapshots[-1].load.kv_usage_ratio


ONE = Plan(
    gap_ms=0, input_tokens=1, max_tokens=1, stop_after=None, priority=0, shared_blocks=0, pull=False, pull_ratio=None,
    hold=False, tbt_slo_s=None, abort_after_ms=None, probe_after_ms=0.0,
)  # fmt: skip
SPARED = [
    replace(ONE, input_tokens=10, max_tokens=18, pull=True),
    replace(ONE, input_tokens=25, max_tokens=16, shared_blocks=4),
    replace(ONE, input_tokens=24),
    replace(ONE, input_tokens=37, max_tokens=31),
    replace(ONE, input_tokens=15, max_tokens=33, pull=True),
    replace(ONE, input_tokens=6, max_tokens=12, shared_blocks=4, hold=True),
]
"""One is chosen to be preempted, and is not: its blocks are not free at once."""
TIGHT = {
    "timer": FixedTimer(), "kv_blocks": 33, "max_model_len": 110, "max_num_batched_tokens": 5,
    "max_num_seqs": 3, "async_scheduling": True, "prefix_caching": False, "policy": "fcfs", "pulls_kv": True,
    "hands_over_kv": False, "watermark_blocks": 0, "long_prefill_token_threshold": 0, "lease_s": 1.0,
    "tbt_slo_s": None, "jump_idle_steps": False,
}  # fmt: skip


@pytest.mark.rotating(3)
@example(SPARED, TIGHT)
@given(PLANS, SETTINGS)
@settings(deadline=None, max_examples=120)
def test_fcfs_by_rank_is_vllm_where_nothing_is_preempted(plans: list[Plan], changes: dict[str, Any]) -> None:
    """Property 3: every step and every block. No two arrive at one time: ties go by id."""
    plans = [replace(plan, priority=0, gap_ms=plan.gap_ms + 1) for plan in plans]
    changes = {**changes, "tbt_slo_s": None}
    plain = play(plans, {**changes, "policy": "fcfs"}, Engine)
    assume(not plain.snapshots[-1].counters[0])
    ranked = play(plans, {**changes, "ordering": ordering(Fcfs())}, Engine)
    assert_same(ranked, plain)


def busy(seed: int, requests: int, **changes: Any) -> tuple[EngineConfig, list[Any]]:
    """An engine short of KV, and requests with a long tail that arrive faster than it serves."""
    rng = random.Random(seed)
    at_s, load = 0.0, []
    for name in range(requests):
        at_s += rng.expovariate(1 / 0.08)
        outputs = rng.choice([3, 8, 20, 200])
        load.append(request(name, rng.randint(1, 60), outputs, at_s, expected_output_tokens=float(outputs)))
    made = config(timer=LAW, kv_blocks=130, max_model_len=300, max_num_batched_tokens=48, max_num_seqs=12, **changes)
    return made, load


def ends_of(engine: Engine, load: list[Any]) -> list[Finished]:
    """All of them, in order."""
    ends: list[Finished] = []

    def advance(at_s: float) -> None:
        ends.extend(event for event in engine.advance(at_s) if isinstance(event, Finished))

    for item in load:
        while engine.next_event_s() < item.arrival_s:
            advance(engine.next_event_s())
        engine.add(item, item.arrival_s)
    while engine.next_event_s() < float("inf"):
        advance(engine.next_event_s())
    return ends


@pytest.mark.parametrize("swap_s", [None, 0.0005])
@pytest.mark.parametrize("synchronous", [False, True])
def test_engines_agree_where_gamma_is_learned(swap_s: float | None, synchronous: bool) -> None:
    """Hundreds of ends: every rank is worked out anew several times."""
    order = UniBoost(bin_tokens=8, gamma_window=100, preemption_margin_s=0.01)
    settings, load = busy(3, 450, ordering=ordering(order, swap_s_per_token=swap_s), async_scheduling=not synchronous)
    stepping, coarse = Engine(settings), CoarseEngine(settings)
    assert ends_of(stepping, load) == ends_of(coarse, load)
    for engine in (stepping, coarse):
        policy = engine.scheduler.policy
        assert isinstance(policy, RankedPolicy)
        ranks = policy.ranks
        assert ranks.gamma_per_s is not None
        assert ranks.gamma_per_s != order.gamma_per_s
        assert engine.preemptions > 20


# --- evictions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_memguard_bounds_evictions_by_the_doublings_of_work(seed: int) -> None:
    """Property 4, and without MemGuard the bound does not hold."""
    most = {}
    for quantise in (True, False):
        order = UniBoost(bin_tokens=8, quantise=quantise, adaptive=False, gamma_per_s=0.5, preemption_margin_s=0.0)
        settings, load = busy(seed, 250, ordering=ordering(order, quantum_tokens=1))
        ends = ends_of(CoarseEngine(settings), load)
        assert len(ends) == len(load)
        over = []
        for end in ends:
            work = end.stats.input_tokens + end.stats.output_tokens
            chosen = end.stats.preemptions - end.stats.forced_preemptions
            over.append(chosen - (most_priority_changes(work, 8) - 1))
        most[quantise] = max(over)
    assert most[True] <= 0
    assert most[False] > 0


def test_a_dispatched_request_is_not_evicted_before_its_next_threshold() -> None:
    """Prompt 8 of bin 8: protected until 16 tokens are processed, then gives way to a short one."""
    order = UniBoost(bin_tokens=8, adaptive=False, gamma_per_s=0.1, preemption_margin_s=0.0)
    long = request(0, 8, 40)
    short = request(1, 4, 2, at_s=3.5 * STEP_S)
    run = started(config(kv_blocks=13, max_num_seqs=1, max_model_len=48, ordering=ordering(order)), [long, short])
    run.until()
    first = next(place for place, step in enumerate(run.steps) if any(name == "1" for _, _, name in step.chunks))
    processed = sum(tokens for step in run.steps[:first] for tokens, _, name in step.chunks if name == "0")
    assert processed == 16
    assert run.finished["0"].stats.preemptions == 1
    assert run.finished["0"].stats.forced_preemptions == 0


@pytest.mark.parametrize("order", [Fcfs(), ShortestJob()])
def test_orders_that_do_not_preempt_evict_only_for_want_of_kv(order: Any) -> None:
    """Seats are short, KV is not."""
    settings, load = busy(1, 150, ordering=ordering(order))
    engine = Engine(replace(settings, kv_blocks=4_001))
    assert len(ends_of(engine, load)) == 150
    assert engine.preemptions == 0


def test_srpt_protects_the_last_four_tenths() -> None:
    """TRAIL+: of 10 outputs, one with 5 gives way to a shorter one, one with 6 or more does not."""
    for tokens, preempted in ((5, 1), (7, 0)):
        long = request(0, 4, 10, expected_output_tokens=10.0)
        short = request(1, 4, 1, at_s=(tokens - 0.5) * STEP_S, expected_output_tokens=1.0)
        settings = config(max_num_seqs=1, ordering=ordering(ShortestRemaining(), quantum_tokens=1))
        run = started(settings, [long, short]).until()
        assert run.finished["0"].stats.preemptions == preempted


def test_swapped_out_work_is_not_computed_again_but_costs_two_copies() -> None:
    """The same displacement by recompute and by swap: tokens computed, and how long the run takes."""
    found = {}
    for swap_s in (None, 0.001):
        load = [request(0, 20, 20), request(1, 4, 2, at_s=10.5 * STEP_S)]
        settings = config(max_num_seqs=1, prefix_caching=False, ordering=ordering(LeastAttained(), 1, swap_s))
        run = started(settings, load).until()
        assert run.finished["0"].stats.preemptions == 1
        computed = sum(tokens for step in run.steps for tokens, _, name in step.chunks if name == "0")
        found[swap_s] = computed, run.steps[-1].starts_s
    assert found[None][0] - found[0.001][0] == 20 + 10
    copies_s = 2 * (20 + 10) * 0.001
    assert found[0.001][1] == pytest.approx(found[None][1] + copies_s, abs=1e-9)


# --- starvation and work conservation ---------------------------------------------------------------------------------


class Watched(Engine):
    """Looks at every composed step together with who still waits."""

    def __init__(self, settings: EngineConfig) -> None:
        self.admitted_over: list[tuple[RequestState, RequestState]] = []
        self.idle_for_nothing = 0
        scheduler = new_scheduler(new_state(settings))
        super().__init__(settings, loop=EngineLoop(settings, scheduler, Watching(scheduler, self)))


class Watching:
    """A scheduler that is watched."""

    def __init__(self, scheduler: Scheduler, watch: Watched) -> None:
        self._scheduler = scheduler
        self._watch = watch
        self.update_from_output = scheduler.update_from_output
        self.abort = scheduler.abort

    def schedule(self, now_s: float) -> Batch:
        state, watch = self._scheduler.state, self._watch
        before = set(state.running)
        batch = self._scheduler.schedule(now_s)
        ready = [request for request in state.waiting if not request.stale]
        new = [request for request in state.running if request not in before]
        watch.admitted_over += [(request, other) for request in new for other in ready]
        if ready and not batch.preempted:
            watch.idle_for_nothing += self._could_go(ready[0], batch)
        return batch

    def _could_go(self, request: RequestState, batch: Batch) -> bool:
        state = self._scheduler.state
        hit = state.kv.pool.longest_hit(request) if request.computed == 0 else []
        seats = len(state.running) < state.config.max_num_seqs
        tokens = batch.tokens < state.config.max_num_batched_tokens
        return seats and tokens and state.missing_blocks(request, hit) <= 0


@pytest.mark.rotating(3)
@given(st.integers(0, 10_000), UNIBOOSTS)
@settings(deadline=None, max_examples=40)
def test_nobody_is_overtaken_by_one_who_arrives_much_later(seed: int, order: UniBoost) -> None:
    """Properties 5 and 6. The least work is k tokens of prefill: no boost is above b(k)."""
    order = replace(order, adaptive=False)
    settings, load = busy(seed, 60, ordering=ordering(order, quantum_tokens=1))
    engine = Watched(settings)
    assert len(ends_of(engine, load)) == 60
    most_s = order.most_boost_s(SERVICE)
    for admitted, waiting in engine.admitted_over:
        assert admitted.spec.arrival_s <= waiting.spec.arrival_s + most_s
    assert engine.idle_for_nothing == 0


def test_the_bound_is_about_uniboost() -> None:
    """Served newest first, the same load breaks it: the watch does see overtaking."""
    settings, load = busy(7, 60, ordering=ordering(NewestFirst()))
    engine = Watched(settings)
    ends_of(engine, load)
    most_s = UniBoost(gamma_per_s=30.0, bin_tokens=8).most_boost_s(SERVICE)
    gaps_s = [admitted.spec.arrival_s - waiting.spec.arrival_s for admitted, waiting in engine.admitted_over]
    assert max(gaps_s) > most_s


def test_a_waiting_prefill_goes_before_the_next_chunk_of_a_worse_one() -> None:
    """A prompt of 56 tokens in chunks of 8; one of 4 that comes later is first by UniBoost, last by vLLM."""
    load = [request(0, 56, 1), request(1, 4, 1, at_s=1.5 * STEP_S)]
    order = UniBoost(bin_tokens=2, adaptive=False, preemption_margin_s=0.0)
    runs: list[Run] = [
        started(config(max_num_batched_tokens=8, ordering=order_or_none), load).until()
        for order_or_none in (ordering(order), None)
    ]
    first = [list(dict.fromkeys(run.finished)) for run in runs]
    assert first == [["1", "0"], ["0", "1"]]
    assert [tokens for tokens, _, name in runs[0].steps[2].chunks] == [4, 4]


# --- ranks ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(0, 200), UNIBOOSTS)
def test_a_rank_changes_only_at_its_threshold(prompt: int, reach: int, order: UniBoost) -> None:
    """Between thresholds key and right to evict are what the order says of every work in between."""
    ranks = Ranks(ordering(order, quantum_tokens=1))
    state = RequestState(request(0, prompt, 500), 1_000)
    ranks.rank(state, reach)
    key, evictable, crosses = state.key, state.evictable, state.crosses_at
    assert crosses > reach
    for later in range(reach, min(crosses, reach + 300)):
        attained = Work(0.0, prompt, 0, min(later, prompt), max(0, later - prompt))
        assert key[1] == pytest.approx(order.key(attained, SERVICE), abs=1e-9)
        assert evictable == order.may_evict(attained, 0)
        ranks.rank(state, later)
        assert state.key == key
