"""Mean engine steps between scrapes of vLLM's `/metrics` (Prometheus text).

While a request decodes, every step gives it a token, so the mean inter-token latency between two scrapes is the mean
duration of a step; `iteration_tokens_total` counts the steps. What a mean step computed follows from the other
counters: decodes from the number of gaps, prompt tokens from `prompt_tokens_by_source`, context from
`kv_cache_usage_perc`. Scrape one engine every second or so under a load that varies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ballast_sim.fitting.errors import FitInputError
from ballast_sim.fitting.measurements import SHORTEST_MS, Measurements, read_text
from ballast_sim.fitting.samples import Sample

NEEDED = ("inter_token_latency_seconds_count", "num_requests_running", "kv_cache_usage_perc")
PROMPTS = "prompt_tokens_by_source_total"
LARGEST_VALUE = 1e18  # bytes moved; beyond, a file is broken
FEWEST_GAPS = 20  # of an interval; with fewer its mean is too noisy
FEWEST_STEPS = 10  # or counters that grow at different moments of a step belong to different steps
LARGEST_CHANGE_RATIO = 0.3  # of the running requests within an interval
_LINE = re.compile(r"(vllm:[a-zA-Z0-9_:]+)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class _Scrape:
    """Sums over all labels but those that are asked for."""

    path: Path
    line: int
    values: dict[tuple[str, str], float] = field(default_factory=dict)
    engines: set[str] = field(default_factory=set)
    facts: dict[str, int] = field(default_factory=dict)

    def get(self, name: str, part: str = "") -> float:
        """A sample's value; 0 where there is none. `part`: the label that distinguishes samples of one family."""
        return self.values.get((f"vllm:{name}", part), 0.0)


def read_scrapes(paths: Sequence[Path], max_num_batched_tokens: int) -> Measurements:
    """Read scrapes in order: files that hold one or more each, or folders of such files, taken by name.

    Raises `FitInputError` naming file and line.
    """
    scrapes = [scrape for path in _files(paths) for scrape in _split(path)]
    engines = set().union(*(scrape.engines for scrape in scrapes))
    if len(engines) > 1:
        raise FitInputError(f"{paths[0]}: holds engines {', '.join(sorted(engines))}; scrape one engine alone")
    if len(scrapes) < 2:
        raise FitInputError(f"{paths[0]}: {len(scrapes)} scrape; two or more in sequence are needed")
    facts = scrapes[-1].facts
    if not facts:
        raise FitInputError(f"{scrapes[-1].path}: line {scrapes[-1].line}: no vllm:cache_config_info with block_size")
    if missing := _missing(scrapes[-1]):
        raise FitInputError(
            f"{scrapes[-1].path}: line {scrapes[-1].line}: no {', '.join(missing)}, as in older releases of vLLM; "
            "update it, or fit a step log or a benchmark file"
        )
    second_moment = _second_moment_ratio(scrapes[0], scrapes[-1])
    samples: list[Sample] = []
    passed_over: dict[str, int] = {}
    for first, second in pairwise(scrapes):
        sample = _interval(first, second, facts, max_num_batched_tokens, second_moment)
        if isinstance(sample, str):
            passed_over[sample] = passed_over.get(sample, 0) + 1
        else:
            samples.append(sample)
    notes = [f"{count} intervals passed over: {reason}" for reason, count in passed_over.items()]
    return Measurements(samples=samples, facts=facts, notes=notes)


def _missing(scrape: _Scrape) -> list[str]:
    """Metrics without which a step's work is not known: as 0 they would be read into the coefficients of the rest."""
    needed = (*NEEDED, PROMPTS) if scrape.get("time_to_first_token_seconds_count") else NEEDED
    there = {name for name, _ in scrape.values}
    return [f"vllm:{name}" for name in needed if f"vllm:{name}" not in there]


def _interval(
    first: _Scrape, second: _Scrape, facts: dict[str, int], budget: int, second_moment_ratio: float
) -> Sample | str:
    """The mean step between two scrapes, or why there is none."""

    def grown(name: str, part: str = "") -> float:
        return second.get(name, part) - first.get(name, part)

    gaps, firsts = grown("inter_token_latency_seconds_count"), grown("time_to_first_token_seconds_count")
    duration_ms = grown("inter_token_latency_seconds_sum") / gaps * 1e3 if gaps > 0 else 0.0
    if gaps < 0 or firsts < 0 or duration_ms < 0:
        return "the engine started anew"
    if gaps < FEWEST_GAPS or duration_ms < SHORTEST_MS:
        return f"fewer than {FEWEST_GAPS} tokens were decoded"
    if grown("num_preemptions_total") > 0:
        return "requests were preempted"
    running = first.get("num_requests_running"), second.get("num_requests_running")
    if not all(running) or abs(running[1] - running[0]) > LARGEST_CHANGE_RATIO * max(running) + 1:
        return "the number of running requests changed too much"
    steps = grown("iteration_tokens_total_count") or gaps / (sum(running) / 2)
    if steps < FEWEST_STEPS:
        return f"fewer than {FEWEST_STEPS} steps; scrape less often"
    decodes = gaps / steps
    if abs(decodes / (sum(running) / 2) - 1) > LARGEST_CHANGE_RATIO:
        return "the number of running requests changed too much"
    prompts = max(grown(PROMPTS, "local_compute"), 0.0)
    used_ratio = (first.get("kv_cache_usage_perc") + second.get("kv_cache_usage_perc")) / 2
    half_empty_tokens = decodes * facts["block_size"] / 2
    context = max(used_ratio * facts["kv_tokens"] - half_empty_tokens, 0.0)
    parts: tuple[tuple[float, float], ...] = ((1.0, decodes),)
    pairs = 0.0
    if prompts and firsts:
        alone = 1 - (1 - 1 / steps) ** firsts if steps > 1 else 1.0  # share of the steps that start a prompt at least
        share = min(max(alone, prompts / (budget * steps)), 1.0)
        parts = ((share, decodes + prompts / (share * steps)), (1 - share, decodes))
        pairs = prompts / steps * (prompts / firsts) / 2 * second_moment_ratio
    return Sample(
        duration_ms=duration_ms,
        parts=parts,
        decode_context_tokens=context,
        prefill_pairs=pairs,
        decodes=decodes,
    )


def _second_moment_ratio(first: _Scrape, last: _Scrape) -> float:
    """Mean square of the prompts' lengths over the square of their mean, from the histogram's buckets; 1 if unknown."""
    name = "vllm:request_prompt_tokens_bucket"
    limits = sorted((float(part), part) for family, part in last.values if family == name)
    below, lower = 0.0, 0.0
    counts: list[tuple[float, float]] = []
    for limit, part in limits:
        count = last.values[name, part] - first.values.get((name, part), 0.0)
        upper = limit if math.isfinite(limit) else 2 * lower
        counts.append((count - below, (lower + upper) / 2))
        below, lower = count, upper
    if below <= 0:
        return 1.0
    mean = sum(count * middle for count, middle in counts) / below
    return sum(count * middle**2 for count, middle in counts) / below / mean**2


# -- reading -----------------------------------------------------------------------------------------------------------


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(item for item in path.iterdir() if item.is_file() and not item.name.startswith("."))
            if not found:
                raise FitInputError(f"{path}: the folder is empty; expected one file for each scrape")
            yield from found
        else:
            yield path


def _split(path: Path) -> list[_Scrape]:
    """The scrapes of one file: a new one begins where a sample stands for the second time."""
    scrapes: list[_Scrape] = []
    seen: set[str] = set()
    for number, raw in enumerate(read_text(path).splitlines(), 1):
        line = raw.strip()
        if not line.startswith("vllm:"):
            continue
        found = _LINE.fullmatch(line)
        if not found:
            raise FitInputError(f"{path}: line {number}: is not a Prometheus sample: {line[:80]!r}")
        name, labels_text, value_text = found.groups()
        key = line[: found.start(3)]
        if not scrapes or key in seen:
            scrapes.append(_Scrape(path, number))
            seen.clear()
        seen.add(key)
        try:
            value = float(value_text)
        except ValueError:
            raise FitInputError(f"{path}: line {number}: {name}: {value_text!r} is not a number") from None
        if not abs(value) <= LARGEST_VALUE:
            raise FitInputError(f"{path}: line {number}: {name}: must be finite, not {value_text}")
        _take(scrapes[-1], name, dict(_LABEL.findall(labels_text or "")), value, number)
    if not scrapes:
        raise FitInputError(f"{path}: no vllm: metrics; expected what `curl http://ENGINE/metrics` prints")
    return scrapes


def _take(scrape: _Scrape, name: str, labels: dict[str, str], value: float, number: int) -> None:
    if "engine" in labels:
        scrape.engines.add(labels["engine"])
    if name == "vllm:cache_config_info":
        try:
            block_size, blocks = int(labels["block_size"]), int(labels["num_gpu_blocks"])
        except (KeyError, ValueError):
            raise FitInputError(
                f"{scrape.path}: line {number}: {name}: needs block_size and num_gpu_blocks as whole numbers"
            ) from None
        scrape.facts = {"kv_tokens": (blocks - 1) * block_size, "block_size": block_size}
        return
    part = labels.get("le") or labels.get("source") or ""
    scrape.values[name, part] = scrape.values.get((name, part), 0.0) + value
