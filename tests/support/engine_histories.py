"""Random histories of one engine, played on any kind of engine and recorded for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import (
    Batch,
    CoarseEngine,
    Engine,
    EngineConfig,
    Finished,
    PullStarted,
    StepEnded,
    TokensAdvanced,
)
from ballast_sim.engine.gauges import EngineLoad
from tests.support.engines import FixedTimer, config, request

LAW = HardwareProfile(
    name="law",
    overhead_ms=1.0,
    a_ms=3.0,
    d_ms_per_token=0.3,
    k_ms_per_kv_token=0.007,
    s_ms_per_pair=0.0003,
    b_ms_per_seq=0.05,
    kv_tokens=400,
    kv_bytes_per_token=1,
)
MARK_EVERY_TOKENS = 4

NewEngine = Callable[[EngineConfig, Callable[[float, Batch], None]], Engine]


@dataclass(frozen=True, slots=True)
class Plan:
    """One request of a history, and what happens to it."""

    gap_ms: float
    input_tokens: int
    max_tokens: int
    stop_after: int | None
    priority: int
    shared_blocks: int
    pull: bool
    pull_ratio: float | None
    hold: bool
    tbt_slo_s: float | None
    abort_after_ms: float | None
    probe_after_ms: float

    @property
    def pull_tokens(self) -> int | None:
        """Leading tokens to pull; None: the whole prompt."""
        return None if self.pull_ratio is None else max(1, round(self.pull_ratio * self.input_tokens))


PLANS = st.lists(
    st.builds(
        Plan,
        gap_ms=st.integers(0, 40) | st.floats(0, 400),
        input_tokens=st.integers(1, 40),
        max_tokens=st.integers(1, 60),
        stop_after=st.none() | st.integers(1, 60),
        priority=st.integers(0, 2),
        shared_blocks=st.integers(0, 6),
        pull=st.booleans(),
        pull_ratio=st.none() | st.floats(0, 1),
        hold=st.booleans(),
        tbt_slo_s=st.none() | st.sampled_from([0.005, 0.05]),
        abort_after_ms=st.none() | st.integers(0, 200) | st.floats(0, 400),
        probe_after_ms=st.floats(0, 600),
    ),
    min_size=1,
    max_size=14,
)
SETTINGS = st.fixed_dictionaries(
    {
        "timer": st.sampled_from([FixedTimer(), LAW]),
        "kv_blocks": st.integers(30, 120),
        "max_model_len": st.just(110),
        "max_num_batched_tokens": st.integers(3, 64),
        "max_num_seqs": st.integers(1, 8),
        "async_scheduling": st.booleans(),
        "prefix_caching": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "pulls_kv": st.booleans(),
        "hands_over_kv": st.booleans(),
        "watermark_blocks": st.integers(0, 1),
        "long_prefill_token_threshold": st.sampled_from([0, 4]),
        "lease_s": st.sampled_from([0.05, 1.0]),
        "tbt_slo_s": st.none() | st.sampled_from([0.004, 0.008, 0.02]),
        "jump_idle_steps": st.booleans(),
    }
)


@dataclass(slots=True)
class Snapshot:
    """What can be seen of an engine at one time; `pool` is the free queue of KV blocks, their hashes and holders."""

    at_s: float
    load: EngineLoad
    pool: tuple[list[int], dict[int, int], dict[int, int]]
    held: list[list[int]]
    counters: tuple[int, ...]
    queued: list[str]


@dataclass(slots=True)
class History:
    """All that an engine reported and did."""

    token_times_s: dict[str, list[float]] = field(default_factory=dict)
    ends: list[Finished] = field(default_factory=list)
    pulls: list[PullStarted] = field(default_factory=list)
    steps: list[tuple[object, ...]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    loads: list[EngineLoad] = field(default_factory=list)
    marks: dict[str, dict[int, float]] = field(default_factory=dict)
    wakes: int = 0


def script_of(plans: Sequence[Plan]) -> list[tuple[float, int, str]]:
    """(time, request, what happens) in order."""
    script: list[tuple[float, int, str]] = []
    at_s = 0.0
    for number, plan in enumerate(plans):
        at_s += plan.gap_ms / 1e3
        script.append((at_s, number, "add"))
        script.append((at_s + plan.probe_after_ms / 1e3, number, "probe"))
        if plan.abort_after_ms is not None:
            script.append((at_s + plan.abort_after_ms / 1e3, number, "abort"))
        if plan.hold and number % 2:
            script.append((at_s + 0.12, number, "extend"))
            script.append((at_s + 0.5, number, "release"))
    return sorted(script, key=lambda entry: (entry[0], entry[1], entry[2] != "add"))


def play(plans: Sequence[Plan], changes: dict[str, Any], new_engine: NewEngine) -> History:
    """Run a history to its end, with aborts, questions and releases in between."""
    history = History()

    def on_step(now_s: float, batch: Batch) -> None:
        work = (batch.tokens, batch.decodes, batch.decode_context_tokens, batch.prefill_pairs)
        times = (now_s, batch.starts_s, batch.ends_s)
        history.steps.append((batch.number, *work, *times, batch.resumed, batch.preempted))

    if not isinstance(changes["timer"], HardwareProfile):
        changes = {**changes, "tbt_slo_s": None}
    engine = new_engine(config(pull_setup_s=0.003, pull_s_per_token=0.0002, **changes), on_step)
    for due_s, number, action in script_of(plans):
        while (wake_s := engine.next_event_s()) < due_s:
            _wake(engine, wake_s, history)
        if action == "probe":
            history.loads.append(engine.load(due_s))
            _check_marks(engine, due_s, history)
        elif _tell(engine, plans[number], number, action, due_s):  # news bring a coarse engine up to their time
            history.snapshots.append(_snapshot(engine, due_s))
            engine.check_blocks()
    while (wake_s := engine.next_event_s()) < float("inf"):
        _wake(engine, wake_s, history)
    history.snapshots.append(_snapshot(engine, 0.0))
    return history


def _wake(engine: Engine, at_s: float, history: History) -> None:
    history.wakes += 1
    for event in engine.advance(at_s):
        match event:
            case StepEnded():
                for name in event.tokens:
                    history.token_times_s.setdefault(name, []).append(event.at_s)
            case TokensAdvanced():
                times_s = history.token_times_s.setdefault(event.request_id, [])
                assert event.first == len(times_s)
                told = max([event.first, *history.marks.get(event.request_id, ())])
                assert event.marked // MARK_EVERY_TOKENS == told // MARK_EVERY_TOKENS
                times_s += event.times_s
            case Finished():
                history.ends.append(event)
            case PullStarted():
                history.pulls.append(event)
    engine.check_blocks()


def _tell(engine: Engine, plan: Plan, number: int, action: str, at_s: float) -> bool:
    """Give the engine news; False where it takes them for none."""
    match action:
        case "add":
            item = request(
                number,
                plan.input_tokens,
                plan.max_tokens,
                at_s=at_s,
                ids=tuple(range(plan.shared_blocks)) or None,
                priority=plan.priority,
                stop_after=plan.stop_after,
                pull=plan.pull and engine.config.pulls_kv,
                pull_tokens=plan.pull_tokens,
                hold=plan.hold,
                tbt_slo_s=plan.tbt_slo_s,
                expected_output_tokens=float(plan.max_tokens),
                deadline_s=at_s + 0.1 * (number % 3),
            )
            engine.add(item, at_s)
            return True
        case "abort":
            return engine.abort(str(number), at_s)
        case "extend":
            return engine.extend_lease(str(number), at_s)
        case _:
            return engine.release(str(number), at_s)


def _check_marks(engine: Engine, at_s: float, history: History) -> None:
    """Marks come once each, in order, and leave out nothing."""
    if not isinstance(engine, CoarseEngine):
        return
    last_s = 0.0
    for marked_s, name, tokens in engine.marks(at_s, inclusive=False):
        assert last_s <= marked_s < at_s
        assert tokens % MARK_EVERY_TOKENS == 0
        seen = history.marks.setdefault(name, {})
        assert tokens not in seen
        seen[tokens], last_s = marked_s, marked_s
    for name, stats in ((name, engine.stats(name)) for name in history.marks):
        if stats is not None:
            told = max(len(history.token_times_s.get(name, ())), max(history.marks[name], default=0))
            assert stats.output_tokens - told < MARK_EVERY_TOKENS


def _snapshot(engine: Engine, at_s: float) -> Snapshot:
    if isinstance(engine, CoarseEngine):
        engine.cohort.hash_all_blocks()
    scheduler = engine.scheduler.state
    counters = scheduler.counters
    return Snapshot(
        at_s,
        engine.load(at_s or None),
        scheduler.kv.pool.contents(),
        [list(state.blocks) for state in scheduler.running],
        (counters.preemptions, counters.prefix_queries, counters.prefix_hits, counters.external_queries),
        [state.request_id for state in scheduler.waiting],
    )
