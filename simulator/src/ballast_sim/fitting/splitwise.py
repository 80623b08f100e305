"""How far whole measured requests are from the derived profiles: what the kernel tables leave out.

Splitwise published medians of Llama-2-70B on A100 and H100 (`splitwise_measured.csv.gz`: model, gpu, tp, prompt, batch,
generated, prompt_ms, token_ms), taken with an engine of 2023. Its weights and KV are as large as Llama-3-70B's, but for
the vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.fitting.kernel_tables import numeric_rows

GPUS = {"a100-80gb": "a100", "h100-80gb": "h100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOverDerived:
    """Medians of measured over derived durations of single requests (batch 1)."""

    name: str
    requests: int
    token_ratio: float
    prompt_ratio: float


def measured_over_derived(folder: Path, profiles: Iterable[HardwareProfile]) -> list[MeasuredOverDerived]:
    """For each profile that Splitwise measured the like of. Raises `FitInputError`."""
    known = {profile.name: profile for profile in profiles}
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    columns = ("tp", "prompt", "batch", "generated", "prompt_ms", "token_ms")
    for row, number in numeric_rows(folder / "splitwise_measured.csv.gz", columns):
        name = f"{GPUS.get(row.get('gpu', ''))}-llama3-70b-tp{number['tp']:.0f}"
        if row.get("model") != "llama2-70b" or number["batch"] != 1 or name not in known:
            continue
        profile, prompt = known[name], int(number["prompt"])
        token_ms = profile.step_s(1, prompt + number["generated"] / 2, 0.0, 1) * 1e3
        prompt_ms = profile.step_s(prompt, 0.0, prompt**2 / 2, 0) * 1e3
        ratios[name].append((number["token_ms"] / token_ms, number["prompt_ms"] / prompt_ms))
    found = []
    for name, pairs in ratios.items():
        token_ratio, prompt_ratio = np.median(pairs, axis=0)
        found.append(
            MeasuredOverDerived(
                name=name, requests=len(pairs), token_ratio=float(token_ratio), prompt_ratio=float(prompt_ratio)
            )
        )
    return found
