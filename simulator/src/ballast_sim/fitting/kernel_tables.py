"""Profiles from public kernel tables: step times of models, summed from measured kernels (docs/profiles/shipped.md).

A folder holds `step_decode.csv.gz` (gpu, model, tp, batch, context, ms), `step_prefill.csv.gz` (gpu, model, tp, tokens,
ms), `kv_capacity.csv.gz` (gpu, model, tp, kv_bytes_per_token, kv_tokens) and, by gpu,
`kernel_GPU_prefill_attention.csv.gz` (heads, kv_heads, batch, len, ms; one layer).
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.fitting.derivation import (
    LARGEST_MEAN_ERROR_RATIO,
    MAX_NUM_SEQS,
    OVERHEAD_MS,
    Derived,
    percent,
    rounded,
)
from ballast_sim.fitting.errors import FitInputError
from ballast_sim.fitting.law import OVERHEAD, Errors, fit_undisturbed
from ballast_sim.fitting.model_shapes import MODELS, ModelShape
from ballast_sim.fitting.samples import Sample, Samples, chunk_parts

CHUNK_TOKENS = 8192  # the sums split a longer prompt's matrix products there
PINNED_NAMES = {("a100", "qwen3-32b"), ("h200", "llama3-8b")}
"""`gpu-model` without -tpN is a pinned profile's name."""
MEMORY_GB = {"a100": 80, "h100": 80, "h200": 141}


@dataclass(frozen=True, slots=True, order=True)
class Setup:
    """A model on so many GPUs of a kind."""

    gpu: str
    model: str
    tp: int

    @property
    def profile_name(self) -> str:
        """`h100-llama3-70b-tp4`; one GPU goes without saying where the name is free."""
        explicit = self.tp > 1 or (self.gpu, self.model) in PINNED_NAMES
        return f"{self.gpu}-{self.model}" + (f"-tp{self.tp}" if explicit else "")

    @property
    def hardware(self) -> str:
        """For people."""
        one = f"{self.gpu.upper()} {MEMORY_GB[self.gpu]} GB"
        return f"{self.tp} x {one}, tensor parallel" if self.tp > 1 else one


def derive_from_tables(folder: Path) -> list[Derived]:
    """A profile for every set-up in the tables, by name. Raises `FitInputError`."""
    samples: dict[Setup, list[Sample]] = defaultdict(list)
    for setup, row in _rows(folder / "step_decode.csv.gz", ("batch", "context", "ms")):
        samples[setup].append(_decode(int(row["batch"]), int(row["context"]), row["ms"]))
    for setup, row in _rows(folder / "step_prefill.csv.gz", ("tokens", "ms")):
        samples[setup].append(_prefill(int(row["tokens"]), row["ms"]))
    attention = {gpu: _attention(folder, gpu) for gpu in sorted({setup.gpu for setup in samples})}
    derived = [
        _derive(setup, Samples.of(samples[setup]), row, attention[setup.gpu])
        for setup, row in _rows(folder / "kv_capacity.csv.gz", ("kv_bytes_per_token", "kv_tokens"))
        if setup in samples
    ]
    return sorted(derived, key=lambda item: item.profile.name)


def _decode(batch: int, context: int, ms: float) -> Sample:
    """One step of `batch` decodes, `context` tokens each."""
    return Sample(
        duration_ms=ms,
        parts=((1.0, float(batch)),),
        decode_context_tokens=float(batch * context),
        prefill_pairs=0.0,
        decodes=float(batch),
    )


def _prefill(tokens: int, ms: float) -> Sample:
    """One prompt alone."""
    parts = chunk_parts(tokens, CHUNK_TOKENS)
    return Sample(duration_ms=ms, parts=parts, decode_context_tokens=0.0, prefill_pairs=tokens**2 / 2, decodes=0.0)


def _derive(
    setup: Setup, samples: Samples, capacity: Mapping[str, float], attention: Mapping[tuple[int, int], float]
) -> Derived:
    """`attention`: ms a pair in one layer by (heads, kv heads) of one GPU."""
    base = HardwareProfile(
        name=setup.profile_name,
        hardware=setup.hardware,
        gpus=setup.tp,
        overhead_ms=0.0,
        a_ms=1.0,
        d_ms_per_token=0.0,
        k_ms_per_kv_token=0.0,
        s_ms_per_pair=_attention_of(setup, MODELS[setup.model], attention),
        b_ms_per_seq=0.0,
        kv_tokens=int(capacity["kv_tokens"]),
        kv_bytes_per_token=int(capacity["kv_bytes_per_token"]),
        max_num_seqs=MAX_NUM_SEQS[setup.gpu],
    )
    kept = {OVERHEAD: "the tables leave the host out", "s_ms_per_pair": "from the attention kernel itself"}
    fit = fit_undisturbed(samples, base, kept)
    fitted = rounded(fit.profile)
    train, rest = fit.errors_of(fitted)
    derivation = (
        "fit to public kernel tables (AIConfigurator, vLLM 0.14; decode and prefill steps; held-out error mean "
        f"{percent(rest.mean_ratio)}, max {percent(rest.max_ratio)}); overhead assumed"
    )
    whole = replace(fitted, overhead_ms=OVERHEAD_MS, derivation=derivation)
    return Derived(profile=whole, train=train, held_out=rest, left_out=_left_out(setup, rest))


def _left_out(setup: Setup, held_out: Errors) -> str | None:
    """Why a profile is not shipped."""
    if (setup.gpu, setup.model, setup.tp) == ("h200", "llama3-8b", 1):
        return "the pinned h200-llama3-8b is from the same tables"
    if held_out.mean_ratio > LARGEST_MEAN_ERROR_RATIO:
        return f"the law does not describe it: held-out error mean {percent(held_out.mean_ratio)}"
    return None


def _attention_of(setup: Setup, shape: ModelShape, by_heads: Mapping[tuple[int, int], float]) -> float:
    """ms a pair in all layers."""
    heads = (shape.heads // setup.tp, shape.kv_heads // setup.tp)
    if heads not in by_heads:
        raise FitInputError(
            f"kernel_{setup.gpu}_prefill_attention.csv.gz: no rows with heads {heads[0]} and kv_heads {heads[1]}, "
            f"which {setup.profile_name} needs"
        )
    return by_heads[heads] * shape.layers


def _attention(folder: Path, gpu: str) -> dict[tuple[int, int], float]:
    """ms a pair in one layer at the longest measured prompt, where launch and fill no longer count."""
    found: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    columns = ("heads", "kv_heads", "batch", "len", "ms")
    for _, row in numeric_rows(folder / f"kernel_{gpu}_prefill_attention.csv.gz", columns):
        pairs = row["batch"] * row["len"] ** 2 / 2
        found[int(row["heads"]), int(row["kv_heads"])].append((int(row["len"]), row["ms"] / pairs))
    return {
        heads: float(np.median([ms for length, ms in rows if length == max(rows)[0]])) for heads, rows in found.items()
    }


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[Setup, dict[str, float]]]:
    """Set-up and numbers of each row."""
    for row, numbers in numeric_rows(path, ("tp", *columns)):
        gpu, model = row.get("gpu", ""), row.get("model", "")
        if gpu not in MEMORY_GB or model not in MODELS:
            raise FitInputError(
                f"{path}: gpu {gpu!r}, model {model!r}: known are {', '.join(MEMORY_GB)} and {', '.join(MODELS)}"
            )
        yield Setup(gpu, model, int(numbers["tp"])), numbers


def numeric_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[dict[str, str], dict[str, float]]]:
    """Each row of a gzip CSV file, and those of its columns that must hold positive numbers.

    Raises `FitInputError`.
    """
    try:
        with gzip.open(path, "rt", newline="") as lines:
            reader = csv.DictReader(lines)
            for row in reader:
                numbers: dict[str, float] = {}
                for name in columns:
                    try:
                        numbers[name] = float(row[name])
                    except (KeyError, TypeError, ValueError):
                        raise FitInputError(f"{path}: line {reader.line_num}: {name}: must be a number") from None
                    if not 0 < numbers[name] < float("inf"):
                        raise FitInputError(f"{path}: line {reader.line_num}: {name}: must be above 0 and finite")
                yield row, numbers
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise FitInputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
