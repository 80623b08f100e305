"""Prompt tokens in a step: vLLM's budget, or what the time between tokens leaves room for (Libra's Algorithm 2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.policies.partition.batch_budget import StepTimeTable
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.engine import Batch, CoarseEngine, Engine, EngineConfig, EngineRequest, Finished, UniqueContent
from ballast_sim.engine.batching import LocalBatching
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings

pytestmark = pytest.mark.rotating(4, each=True)

PROFILE = replace(SHIPPED_PROFILES["a100-qwen3-14b"], kv_tokens=65_536)


def request(name: int, prompt: int, output: int, tbt_slo_s: float | None = None, pull: bool = False) -> EngineRequest:
    return EngineRequest(
        request_id=str(name),
        input_tokens=prompt,
        max_tokens=output,
        content=UniqueContent(name),
        arrival_s=0.0,
        tbt_slo_s=tbt_slo_s,
        pull=pull,
    )


def steps_of(requests: list[EngineRequest], slo_s: float | None) -> list[Batch]:
    """All steps of an engine that gets these requests at once."""
    made = EngineConfig.from_profile(PROFILE, tbt_slo_s=slo_s, pulls_kv=True)
    batches: list[Batch] = []
    engine = Engine(made, lambda now_s, batch: batches.append(batch))
    for each in requests:
        engine.add(each, 0.0)
    ended = 0
    while (due_s := engine.next_event_s()) < float("inf"):
        ended += sum(isinstance(event, Finished) for event in engine.advance(due_s))
        engine.check_blocks()
    assert ended == len(requests)
    return batches


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 40)), min_size=1, max_size=8), st.sampled_from([0.05, 0.1])
)
@settings(max_examples=30, deadline=None)
def test_no_step_holds_more_prompt_than_the_table_allows(shapes: list[tuple[int, int]], slo_s: float) -> None:
    """Against a plain transcription: record the last step, take all decodes, look up M, add prompts up to M."""
    table = StepTimeTable(PROFILE)
    previous: Batch | None = None
    before_previous: Batch | None = None
    for batch in steps_of([request(name, *shape) for name, shape in enumerate(shapes)], slo_s):
        # With asynchronous scheduling a step is composed while the one before it runs: what it took is not known yet.
        if before_previous is not None and before_previous.tokens > before_previous.decodes:
            table.observe(
                before_previous.tokens - before_previous.decodes,
                before_previous.decode_context_tokens / max(1, before_previous.decodes),
                before_previous.decodes,
                before_previous.ends_s - before_previous.starts_s,
            )
        prompts = batch.tokens - batch.decodes
        context = batch.decode_context_tokens / max(1, batch.decodes)
        # The last token of a prompt may count as a decode of the step, which the budget did not know.
        most = table.max_prefill_tokens(context, batch.decodes, slo_s, 8192 - batch.decodes)
        assert prompts <= most + table.granule_tokens
        before_previous, previous = previous, batch


def test_decodes_with_a_relaxed_objective_leave_more_room() -> None:
    """The think part of an answer suffers longer steps, and the prompt beside it is done in fewer of them."""
    strict, relaxed = (steps_of([request(0, 16, 60, slo_s), request(1, 8000, 2)], 0.05) for slo_s in (None, 0.2))
    mixed = [[step for step in steps if step.tokens - step.decodes > 16] for steps in (strict, relaxed)]
    assert max(step.ends_s - step.starts_s for step in mixed[0]) < 0.07  # how deep a prompt is the table does not know
    assert 0.1 < max(step.ends_s - step.starts_s for step in mixed[1] if step.decodes) < 0.26
    assert len(mixed[1]) < len(mixed[0]) / 2


def test_without_an_objective_a_prompt_fills_the_budget() -> None:
    """vLLM's own way: the decode waits for a step of 8,192 tokens."""
    steps = steps_of([request(0, 16, 60), request(1, 16_000, 2)], None)
    assert max(step.tokens for step in steps) == 8192


def test_what_only_pulls_kv_does_not_wait_behind_prompts() -> None:
    """With the objective a pulled request decodes while a prompt that came before it is still being computed."""
    order: dict[bool, list[str]] = {}
    for by_slo in (False, True):
        made = EngineConfig.from_profile(
            replace(PROFILE, max_num_seqs=2), tbt_slo_s=0.05 if by_slo else None, pulls_kv=True
        )
        engine = CoarseEngine(made)
        for each in (request(0, 4000, 3), request(1, 9000, 2), request(2, 100, 2, pull=True)):
            engine.add(each, 0.0)
        order[by_slo] = []
        while (due_s := engine.next_event_s()) < float("inf"):
            order[by_slo] += [event.request_id for event in engine.advance(due_s) if isinstance(event, Finished)]
    assert order[True].index("2") == 0
    assert order[False].index("2") > 0


@pytest.mark.parametrize("text", ["default", "chunk:512", "slo:0.1"])
def test_local_batching_is_read_as_it_is_written(text: str) -> None:
    assert str(LocalBatching.parse(text)) == text


@pytest.mark.parametrize("text", ["", "slo", "slo:0", "slo:inf", "chunk:0", "chunk:1.5", "sarathi:512"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="local_batching: cannot read"):
        LocalBatching.parse(text)


def test_engines_without_a_scheduler_have_no_local_batching() -> None:
    with pytest.raises(ValueError, match="for engines with a scheduler"):
        FleetSettings(physics="sibyl-held", local_batching=LocalBatching(tbt_slo_s=0.1))
