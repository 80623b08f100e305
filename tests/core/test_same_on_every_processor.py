"""What gateways learn, and so decisions and simulated figures, is the same with AVX-512 and without it.

numpy has other code for processors with AVX-512, whose exponentials differ in the last bit. Where placements are near
ties that is enough for other figures: one run in nine of the matrix.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

WITHOUT_AVX512: Final = "X86_V4 AVX512_ICL AVX512_SPR AVX512_SKX AVX512F"
"""By the names of all numpy's versions; those that it does not know, or the processor does not have, change nothing."""

LEARN: Final = """
import random
from ballast_core.beliefs.prefill_time import PrefillTimes
from ballast_core.beliefs.step_time import StepTimeModel
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B

rng, prefills, steps, now_s = random.Random(1), PrefillTimes(), StepTimeModel(H20_QWEN3_32B), 0.0
prefills.add(0, A100_QWEN3_32B)
for _ in range(1000):
    tokens, cached = rng.randint(1, 20_000), rng.randint(0, 4) * 512
    took_s, now_s = A100_QWEN3_32B.step_s(tokens, 0.0, tokens * tokens / 2, 0) * rng.uniform(0.8, 1.5), now_s + 1.0
    prefills.completed(
        0, dispatched_s=now_s - took_s, uncached_tokens=tokens, cached_tokens=cached, predicted_s=None, now_s=now_s
    )
    decodes = float(rng.randint(2, 120))
    context = decodes * rng.uniform(500.0, 2500.0)
    steps.observe(H20_QWEN3_32B.step_s(int(decodes), context, 0.0, int(decodes)) * 1.1, decodes, context, now_s=now_s)
    print(prefills.factor(0).hex(), steps.profile)
"""


def test_what_is_learned_does_not_depend_on_the_processor() -> None:
    """To the last bit, over a thousand prompts and steps. Without AVX-512 on this machine both are the same program."""
    usual = {name: value for name, value in os.environ.items() if name != "NPY_DISABLE_CPU_FEATURES"}
    learned = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LEARN], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for environment in (usual, {**usual, "NPY_DISABLE_CPU_FEATURES": WITHOUT_AVX512})
    ]
    assert learned[0].count("\n") == 1000
    assert learned[0] == learned[1]
