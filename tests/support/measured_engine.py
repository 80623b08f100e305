"""An engine under a load that comes and goes, measured as its owner could: step log, token times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import Batch, Engine, EngineConfig, EngineRequest, StepEnded, UniqueContent


@dataclass(frozen=True, slots=True)
class Measured:
    """What happened: rows of a step log; per request, when it was sent, its lengths and token times."""

    steps: list[dict[str, float]]
    starts_s: dict[str, float]
    input_tokens: dict[str, int]
    token_times_s: dict[str, list[float]]

    def bench_result(self, jitter_s: float = 0.0, seed: int = 0) -> dict[str, Any]:
        """As `vllm bench serve --save-result --save-detailed` writes it (vllm/benchmarks/serve.py).

        `jitter_s`: standard deviation of when a client sees a token.
        """
        rng = np.random.default_rng(seed)
        names = [name for name, times in self.token_times_s.items() if times]
        times = {
            name: np.maximum.accumulate(
                self.token_times_s[name] + rng.normal(0, jitter_s, len(self.token_times_s[name]))
            )
            for name in names
        }
        return {
            "backend": "vllm",
            "completed": len(names),
            "failed": 0,
            "input_lens": [self.input_tokens[name] for name in names],
            "output_lens": [len(times[name]) for name in names],
            "ttfts": [float(times[name][0]) - self.starts_s[name] for name in names],
            "itls": [np.diff(times[name]).tolist() for name in names],
            "start_times": [self.starts_s[name] for name in names],
            "errors": [""] * len(names),
        }


def measure(profile: HardwareProfile, requests: int = 150, seed: int = 0) -> Measured:
    """Run one engine of `profile`: requests come in waves, so that batches of all sizes occur."""
    rng = np.random.default_rng(seed)
    steps: list[dict[str, float]] = []

    def on_step(_: float, batch: Batch) -> None:
        steps.append(
            {
                "duration_ms": (batch.ends_s - batch.starts_s) * 1e3,
                "tokens": batch.tokens,
                "decodes": batch.decodes,
                "decode_context_tokens": batch.decode_context_tokens,
                "prefill_pairs": batch.prefill_pairs,
            }
        )

    config = EngineConfig(
        timer=profile,
        kv_blocks=profile.kv_blocks,
        block_size=profile.block_size,
        max_model_len=16_384,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        max_num_seqs=profile.max_num_seqs,
    )
    engine = Engine(config, on_step)
    measured = Measured(steps, {}, {}, {})
    unit_s = profile.step_s(1, 0, 0, 1)
    now_s = 0.0
    for number in range(requests):
        now_s += rng.exponential(unit_s * (2 if number // 30 % 2 else 40))
        while (due_s := engine.next_event_s()) <= now_s:
            _advance(engine, due_s, measured)
        name, tokens = str(number), int(rng.choice([30, 200, 700, 2500]) * rng.uniform(0.5, 1.5))
        request = EngineRequest(
            request_id=name,
            input_tokens=tokens,
            max_tokens=int(rng.integers(20, 400)),
            content=UniqueContent(number),
            arrival_s=now_s,
        )
        engine.add(request, now_s)
        measured.starts_s[name], measured.input_tokens[name], measured.token_times_s[name] = now_s, tokens, []
    while (due_s := engine.next_event_s()) < math.inf:
        _advance(engine, due_s, measured)
    return measured


def _advance(engine: Engine, at_s: float, measured: Measured) -> None:
    for event in engine.advance(at_s):
        if isinstance(event, StepEnded):
            for name in event.tokens:
                measured.token_times_s[name].append(event.at_s)
