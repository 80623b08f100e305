"""Step logs: one row per engine step. CSV, JSONL, and the golden files of docs/golden.md; plain or gzip.

Columns: `duration_ms`, `decodes`, `decode_context_tokens` (tokens already computed, summed over the decodes), and for
the prefill chunks either `prefills` (JSONL only: a list of [tokens, tokens computed before]) or `tokens` (all tokens of
the step) and `prefill_pairs` (the sum of n (C + n/2)).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ballast_sim.fitting.errors import FitInputError
from ballast_sim.fitting.measurements import LARGEST_NUMBER, SHORTEST_MS, Measurements, read_text
from ballast_sim.fitting.samples import Sample

REQUIRED = ("duration_ms", "decodes", "decode_context_tokens")


def read_step_log(path: Path) -> Measurements:
    """Read one file. Raises `FitInputError` naming line and column."""
    text = read_text(path)
    facts: dict[str, int] = {}
    samples: list[Sample] = []
    for number, row in _rows(path, text):
        try:
            if "summary" in row:
                facts = _facts(row["summary"])
            elif "req" not in row:
                samples.append(_sample(row))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise FitInputError(f"{path}: line {number}: {reason}") from None
    if not samples:
        raise FitInputError(f"{path}: no engine steps; expected one row per step with {', '.join(REQUIRED)}")
    return Measurements(samples=samples, facts=facts)


def _rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line number and columns."""
    if not text.lstrip().startswith("{"):
        reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
        missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise FitInputError(f"{path}: line 1: no column {', '.join(missing)}; a step log names its columns there")
        for row in reader:
            if None in row:
                raise FitInputError(f"{path}: line {reader.line_num}: more values than the first line names columns")
            yield reader.line_num, {name: value for name, value in row.items() if value}
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise FitInputError(f"{path}: line {number}: is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise FitInputError(f"{path}: line {number}: must be an object, one for each step")
        yield number, value


def _facts(summary: Mapping[str, Any]) -> dict[str, int]:
    """The engine's fields of a golden file; one of `kv_blocks` is the null block."""
    block_size = int(summary["block_size"])
    return {
        "kv_tokens": (int(summary["kv_blocks"]) - 1) * block_size,
        "block_size": block_size,
        "max_num_batched_tokens": int(summary["max_num_batched_tokens"]),
        "max_num_seqs": int(summary["max_num_seqs"]),
    }


def _sample(row: Mapping[str, Any]) -> Sample:
    """Raises ValueError, KeyError or TypeError naming what is wrong."""
    if "step" in row:
        _, _, duration_ms, decodes, context, prefills, *_ = row["step"]
        row = {"duration_ms": duration_ms, "decodes": decodes, "decode_context_tokens": context, "prefills": prefills}
    duration_ms, decodes, context = (_number(row, name) for name in REQUIRED)
    if duration_ms < SHORTEST_MS:
        raise ValueError(f"duration_ms: must be above 0: a step takes time, not {duration_ms:g}")
    if "prefills" in row:
        try:
            found = [(n, before) for n, before, *_ in row["prefills"]]
        except (TypeError, ValueError):
            wanted = "a list with [tokens, tokens computed before] for each chunk"
            raise ValueError(f"prefills: must be {wanted}, not {row['prefills']!r}") from None
        chunks = [(_checked(n, "prefills"), _checked(before, "prefills")) for n, before in found]
        tokens = decodes + sum(n for n, _ in chunks)
        pairs = sum(n * (before + n / 2) for n, before in chunks)
    else:
        tokens = _number(row, "tokens")
        pairs = _number(row, "prefill_pairs")
    if tokens < max(decodes, 1):
        raise ValueError(f"tokens: must be at least 1 and one for each of the {decodes:g} decodes, not {tokens:g}")
    return Sample(
        duration_ms=duration_ms,
        parts=((1.0, tokens),),
        decode_context_tokens=context,
        prefill_pairs=pairs,
        decodes=decodes,
    )


def _number(row: Mapping[str, Any], name: str) -> float:
    if name not in row:
        raise KeyError(name)
    return _checked(row[name], name)


def _checked(value: object, name: str) -> float:
    """A number that can be counted with. Raises ValueError."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name}: must be a number, not {value!r}") from None
    if isinstance(value, bool) or not 0 <= number <= LARGEST_NUMBER:
        raise ValueError(f"{name}: must be from 0 to {LARGEST_NUMBER:g}, not {value!r}")
    return number
