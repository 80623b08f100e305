"""What the second look at hand-off is worth: decode endpoints bound at arrival (early) and again at hand-off (late).

    python bench/binding_study.py --traces ../shared/traces

Each policy runs with both bindings on the same requests; the figure is early over late, so 1.20 means that binding at
arrival is 20 % worse. Loads are shares of the capacity that `ballast simulate --load` measures (least-requests, late,
queue that does not grow). Policies see no output lengths and no max_tokens; prefill is placed by
least-uncached-tokens. A sample is a seed of a built-in workload, or a window of a trace: sample k takes the k-th run
of requests of the file, and its own capacity. Without --traces built-in workloads of similar lengths stand in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ballast_core.model import Binding
from ballast_sim.simulation.capacity.cache import cached_capacity
from ballast_sim.simulation.capacity.search import measure_capacity
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, run

MEASURES = (("tpot_s", "p99"), ("tpot_s", "mean"), ("ttft_s", "p99"), ("ttft_s", "mean"))


@dataclass(frozen=True, slots=True)
class Case:
    """A workload on a shape near balance."""

    name: str
    trace: str | None
    """A file below --traces; None always takes the built-in workload."""
    workload: str
    shape: str
    requests: int


CASES = (
    Case("azure", "azure23_conv_w1.csv.gz", "chat", "16P@a100-qwen3-32b,4D@h20-qwen3-32b", 1500),
    Case(
        "mooncake",
        "mooncake_conversation_w1.jsonl.gz",
        "hotspot-prefix",
        "20P@a100-qwen3-32b,4D@h20-qwen3-32b",
        1500,
    ),
    Case("servegen-large", "servegen_large_w1.csv.gz", "libra-chat", "6P@a100-qwen3-32b,4D@h20-qwen3-32b", 1500),
    Case("sharegpt-reasoning", None, "sharegpt-reasoning", "2P@a100-qwen3-32b,16D@h20-qwen3-32b", 1500),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy on one sample at one load: what both bindings came to."""

    case: str
    load: float
    sample: int
    policy: str
    figures: dict[str, dict[str, object]]
    """By binding."""

    def ratio(self, measure: str, statistic: str) -> float:
        """Early over late."""
        early, late = (_figure(self.figures[name], measure, statistic) for name in ("early", "late"))
        return early / late


def _figure(figures: dict[str, object], measure: str, statistic: str) -> float:
    distribution = figures[measure]
    assert isinstance(distribution, dict)
    return float(distribution[statistic])


def source_of(case: Case, traces: Path | None, sample: int, requests: int, folder: Path) -> WorkloadSource:
    """Where a sample's requests come from. Raises ValueError where a trace is too short for it."""
    if case.trace is None or traces is None:
        return WorkloadSource(workload=case.workload, limit=requests)
    whole = WorkloadSource(trace=traces / case.trace).load(0, 1.0).requests
    window = whole[sample * requests : (sample + 1) * requests]
    if len(window) < requests:
        raise ValueError(f"--samples: {case.trace} has {len(whole)} requests, too few for sample {sample}")
    path = folder / f"{case.name}-{sample}.jsonl"
    rows = [
        {
            "arrival_s": request.arrival_s - window[0].arrival_s,
            "input_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
            **({"hash_ids": request.hash_ids, "block_size": request.block_size} if request.hash_ids else {}),
        }
        for request in window
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return WorkloadSource(trace=path)


def sample_runs(case: Case, setup: Setup, sample: int, loads: Sequence[float], policies: str) -> list[RunSpec]:
    """Every run of a sample, at shares of its measured capacity."""
    capacity, _ = cached_capacity(setup, lambda: measure_capacity(setup))
    return [
        RunSpec(
            setup=setup,
            policy=policy,
            seed=sample,
            rate_scale=load * capacity.rate_scale,
            binding=binding,
            load=load,
        )
        for load in loads
        for policy in parse_policies(policies)
        for binding in (Binding.EARLY, Binding.LATE)
    ]


def cells_of(case: Case, sample: int, specs: Sequence[RunSpec], figures: Sequence[dict[str, object]]) -> list[Cell]:
    """Pairs of runs that differ in the binding alone."""
    paired: dict[tuple[float, str], dict[str, dict[str, object]]] = {}
    for spec, one in zip(specs, figures, strict=True):
        assert spec.load is not None
        paired.setdefault((spec.load, spec.policy.name), {})[spec.binding.value] = one
    return [Cell(case.name, load, sample, policy, both) for (load, policy), both in paired.items()]


def print_table(cells: Sequence[Cell]) -> None:
    """A row for each case, load and policy: the mean over samples, and least to largest."""
    print(
        "| workload | load | policy | late: P99 TPOT | P99 TPOT | mean TPOT | P99 TTFT | mean TTFT |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    rows: dict[tuple[str, float, str], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.case, cell.load, cell.policy), []).append(cell)
    for (case, load, policy), group in rows.items():
        late_ms = [_figure(cell.figures["late"], "tpot_s", "p99") * 1e3 for cell in group]
        ratios = [_spread([cell.ratio(*measure) for cell in group]) for measure in MEASURES]
        print(f"| {case} | {load:g} | {policy} | {statistics.fmean(late_ms):.1f} ms | {' | '.join(ratios)} |")


def _spread(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ({min(values):.2f}-{max(values):.2f})"


def _figures(spec: RunSpec) -> dict[str, object]:
    return run(spec).figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of the trace files; without it built-in workloads")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES))
    parser.add_argument("--policies", default="sibyl,ballast,least-requests,least-tokens")
    parser.add_argument("--loads", default="0.7,0.95")
    parser.add_argument("--samples", type=int, default=2, help="seeds, or windows of a trace")
    parser.add_argument("--requests", type=int, help="requests of a sample instead of the case's own number")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--json", type=Path, help="write both bindings' figures of every cell to this file")
    options = parser.parse_args()
    loads = [float(load) for load in options.loads.split(",")]
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs) as pool:
        for case in [case for case in CASES if case.name in options.cases.split(",")]:
            for sample in range(options.samples):
                source = source_of(case, options.traces, sample, options.requests or case.requests, Path(folder))
                setup = Setup(machines=parse_shape(case.shape), shape=case.shape, source=source)
                specs = sample_runs(case, setup, sample, loads, options.policies)
                cells += cells_of(case, sample, specs, list(pool.map(_figures, specs)))
                print(f"{case.name}, sample {sample}: {len(specs)} runs", file=sys.stderr, flush=True)
    print_table(cells)
    if options.json:
        rows = [
            {"case": cell.case, "load": cell.load, "sample": cell.sample, "policy": cell.policy, **cell.figures}
            for cell in cells
        ]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
