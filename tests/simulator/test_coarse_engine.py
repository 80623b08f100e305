"""A coarse engine is the engine: the same steps, tokens, ends, preemptions and KV blocks, in fewer wake-ups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from ballast_sim.engine import CoarseEngine, Engine
from ballast_sim.validation import first_difference, read_golden, replay
from tests.support.engine_histories import MARK_EVERY_TOKENS, PLANS, SETTINGS, Plan, play
from tests.support.engines import config, request

pytestmark = pytest.mark.rotating(4, each=True)

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
FILES = sorted(GOLDEN.glob("*.jsonl.gz"))
OWN_FILES = sorted((Path(__file__).parents[1] / "golden" / "engine").glob("*.jsonl.gz"))


@given(PLANS, SETTINGS)
@settings(deadline=None, max_examples=150)
def test_coarse_equals_stepping_to_the_last_bit(plans: list[Plan], changes: dict[str, Any]) -> None:
    """Every step with its times and work, every token, end, pull, gauge and counter, every block and its hash."""
    stepped = play(plans, changes, Engine)
    coarse = play(plans, changes, lambda config, on_step: CoarseEngine(config, on_step, MARK_EVERY_TOKENS))
    assert coarse.steps == stepped.steps
    assert coarse.token_times_s == stepped.token_times_s
    assert coarse.ends == stepped.ends
    assert coarse.pulls == stepped.pulls
    assert coarse.loads == stepped.loads
    assert coarse.snapshots == stepped.snapshots
    for name, marks in coarse.marks.items():
        for tokens, at_s in marks.items():
            assert stepped.token_times_s[name][tokens - 1] == at_s
    assert coarse.wakes <= stepped.wakes


@pytest.mark.rotating(4)
@pytest.mark.parametrize(
    "path",
    [*OWN_FILES, *(pytest.param(path, marks=pytest.mark.shared) for path in FILES)],
    ids=lambda path: path.name.removesuffix(".jsonl.gz"),
)
def test_a_coarse_engine_takes_every_step_that_vllm_took(path: Path) -> None:
    """As `test_golden_runs`, by the other way through the engine; its steps are exactly the stepping engine's."""
    golden = read_golden(path)
    coarse, stepped = replay(golden, coarse=True), replay(golden)
    assert first_difference(coarse.steps, golden.steps) is None
    assert coarse.steps == stepped.steps
    assert coarse.token_times_s == stepped.token_times_s
    assert coarse.finished == stepped.finished
    assert coarse.expired_leases == stepped.expired_leases


def test_marks_bear_the_name_that_a_request_asks_for_and_count_the_tokens_before_it() -> None:
    engine = CoarseEngine(config(), mark_every_tokens=16)
    asked: tuple[dict[str, Any], ...] = ({}, {"mark_as": "stream", "mark_from": 100}, {"mark_as": ""})
    for name, changes in enumerate(asked):
        engine.add(request(name, 8, 60, **changes), 0.0)
    found = [mark[1:] for mark in _marks_to_the_end(engine)]
    assert found == [("0", 16), ("stream", 116), ("0", 32), ("stream", 132), ("0", 48), ("stream", 148)]


def _marks_to_the_end(engine: CoarseEngine) -> Iterator[tuple[float, str, int]]:
    while (due_s := engine.next_event_s()) < math.inf:
        yield from engine.marks(due_s, inclusive=False)
        engine.advance(due_s)
