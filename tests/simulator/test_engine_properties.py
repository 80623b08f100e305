"""What holds for every engine and every history.

1. Every KV block is free or held, as often as counted, after every event; all are free at the end.
2. Every request ends exactly once, with at most the tokens it asked for, and with all of them unless aborted.
3. Time never goes backwards; steps do not overlap.
4. No step computes more tokens than the budget or runs more requests than max_num_seqs.
5. The same history gives the same steps.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_sim.engine import FinishReason
from tests.support.engines import STEP_S, Run, config, request, started


@dataclass(frozen=True, slots=True)
class Plan:
    """One request of a random history."""

    gap_ms: int
    input_tokens: int
    max_tokens: int
    stop_after: int | None
    priority: int
    shared_blocks: int
    pull: bool
    hold: bool
    abort_after_ms: int | None


PLANS = st.lists(
    st.builds(
        Plan,
        gap_ms=st.integers(0, 40),
        input_tokens=st.integers(1, 40),
        max_tokens=st.integers(1, 24),
        stop_after=st.none() | st.integers(1, 24),
        priority=st.integers(0, 2),
        shared_blocks=st.integers(0, 6),
        pull=st.booleans(),
        hold=st.booleans(),
        abort_after_ms=st.none() | st.integers(0, 200),
    ),
    min_size=1,
    max_size=14,
)
SETTINGS = st.fixed_dictionaries(
    {
        "kv_blocks": st.integers(18, 40),
        "max_num_batched_tokens": st.integers(4, 64),
        "max_num_seqs": st.integers(1, 8),
        "async_scheduling": st.booleans(),
        "prefix_caching": st.booleans(),
        "policy": st.sampled_from(["fcfs", "priority"]),
        "pulls_kv": st.booleans(),
        "watermark_blocks": st.integers(0, 1),
        "long_prefill_token_threshold": st.sampled_from([0, 4]),
        "lease_s": st.sampled_from([0.05, 1.0]),
    }
)


def play(plans: list[Plan], changes: dict[str, Any]) -> Run:
    """Run a history to its end, with aborts in between and half of the held KV pulled."""
    run = started(config(pull_setup_s=0.003, pull_s_per_token=0.0002, **changes))
    script: list[tuple[float, int, str]] = []
    at_s = 0.0
    for number, plan in enumerate(plans):
        at_s += plan.gap_ms / 1e3
        script.append((at_s, number, "add"))
        if plan.abort_after_ms is not None:
            script.append((at_s + plan.abort_after_ms / 1e3, number, "abort"))
        if plan.hold and number % 2:
            script.append((at_s + 0.5, number, "release"))
    for due_s, number, action in sorted(script, key=lambda entry: (entry[0], entry[1], entry[2] != "add")):
        while run.engine.next_event_s() < due_s:
            run.step(run.engine.next_event_s())
        plan = plans[number]
        match action:
            case "add":
                ids = tuple(range(plan.shared_blocks)) or None
                item = request(
                    number,
                    plan.input_tokens,
                    plan.max_tokens,
                    at_s=due_s,
                    ids=ids,
                    priority=plan.priority,
                    stop_after=plan.stop_after,
                    pull=plan.pull and changes["pulls_kv"],
                    hold=plan.hold,
                )
                run.engine.add(item, due_s)
            case "abort":
                run.engine.abort(str(number), due_s)
            case _:
                run.engine.release(str(number), due_s)
        run.engine.check_blocks()
    return run.until()


@given(PLANS, SETTINGS)
@settings(deadline=None, max_examples=120)
def test_every_history_keeps_the_invariants(plans: list[Plan], changes: dict[str, Any]) -> None:
    """Properties 1 to 4; `play` checks the blocks after every event."""
    run = play(plans, changes)
    load = run.engine.load()
    assert load.kv_usage_ratio == 0
    assert (load.running, load.waiting) == (0, 0)
    assert set(run.finished) == {str(number) for number in range(len(plans))}
    for number, plan in enumerate(plans):
        end, times = run.finished[str(number)], run.token_times_s.get(str(number), [])
        asked = min(plan.max_tokens, plan.stop_after or plan.max_tokens)
        assert len(times) == end.stats.output_tokens <= asked
        if end.reason is FinishReason.ABORT:
            assert plan.abort_after_ms is not None
        else:
            assert len(times) == asked
        assert times == sorted(times)
    assert run.times_s == sorted(run.times_s)
    for before, after in zip(run.steps, run.steps[1:], strict=False):
        assert after.composed_s >= before.composed_s
        assert after.starts_s >= before.starts_s + STEP_S - 1e-9
    for step in run.steps:
        assert 0 < sum(tokens for tokens, _, _ in step.chunks) <= changes["max_num_batched_tokens"]
        assert len(step.chunks) <= changes["max_num_seqs"]


@given(PLANS, SETTINGS)
@settings(deadline=None, max_examples=40)
def test_the_same_history_gives_the_same_steps(plans: list[Plan], changes: dict[str, Any]) -> None:
    """Property 5."""
    assert play(plans, changes).steps == play(plans, changes).steps
