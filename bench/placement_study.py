"""Where each placement stands: P99 TPOT and P99 TTFT of short simulated runs, several workloads, two loads.

    python bench/placement_study.py --traces ../shared/traces

Loads are shares of the arithmetic capacity of the narrower stage (`ballast_sim.capacity`; no cache hits, no queueing
loss), so that the figures need no search. Policies see no output lengths and no max_tokens. Prefill is placed by
least-uncached-tokens, decode late-bound. Short runs are noisy: differences of a few percent between two policies mean
nothing without more seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ballast_core.model import STAGE_ROLES, Stage
from ballast_core.policies.registry import build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.capacity import estimate
from ballast_sim.simulation.experiment import RunSpec, Setup, run
from ballast_sim.simulation.policy_choice import PolicyChoice
from ballast_sim.simulation.shapes import parse_shape
from ballast_sim.simulation.source import WorkloadSource

BASELINES = "round-robin,least-requests,least-tokens,sibyl,ballast"


@dataclass(frozen=True, slots=True)
class Case:
    """A workload on a shape near balance."""

    name: str
    source: str
    """A trace file, or the name of a generator."""
    shape: str
    requests: int


CASES = (
    Case("azure", "azure23_conv_w1.csv.gz", "16P@a100-qwen3-32b,4D@h20-qwen3-32b", 1500),
    Case("mooncake", "mooncake_conversation_w1.jsonl.gz", "20P@a100-qwen3-32b,4D@h20-qwen3-32b", 1200),
    Case("servegen-large", "servegen_large_w1.csv.gz", "6P@a100-qwen3-32b,4D@h20-qwen3-32b", 2000),
    Case("servegen-r1", "servegen_r1_w1.csv.gz", "2P@a100-qwen3-32b,14D@h20-qwen3-32b", 1500),
    Case("sharegpt-reasoning", "sharegpt-reasoning", "2P@a100-qwen3-32b,16D@h20-qwen3-32b", 1500),
    Case("azure-mixed", "azure23_conv_w1.csv.gz", "16P@a100-qwen3-32b,2D@h20-qwen3-32b,2D@a100-qwen3-32b", 1500),
    Case(
        "mooncake-mixed",
        "mooncake_conversation_w1.jsonl.gz",
        "20P@a100-qwen3-32b,2D@h20-qwen3-32b,2D@a100-qwen3-32b",
        1200,
    ),
)


def setup_of(case: Case, traces: Path) -> tuple[Setup, float]:
    """The set-up, and the rate scale at which arithmetic says that it is full."""
    is_trace = case.source.endswith(".gz")
    source = WorkloadSource(
        trace=traces / case.source if is_trace else None,
        workload="chat" if is_trace else case.source,
        limit=case.requests,
    )
    setup = Setup(machines=parse_shape(case.shape), shape=case.shape, source=source)
    base = source.load(0, 1.0)
    by_stage = {
        stage: [machine.profile for machine in setup.machines if machine.endpoint.role in STAGE_ROLES[stage]]
        for stage in Stage
    }
    capacity = estimate(base.requests, prefill=by_stage[Stage.PREFILL], decode=by_stage[Stage.DECODE])
    assert base.rate_rps is not None
    return setup, capacity.rps / base.rate_rps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"), help="folder of the trace files")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES))
    parser.add_argument("--loads", default="0.7,0.95")
    parser.add_argument("--policies", default=BASELINES)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--json", type=Path, help="write every run's figures to this file")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(
        f"{'case':<20} {'load':>4} {'seed':>4} {'policy':<24} {'TPOT p99':>9} {'TTFT p99':>9} "
        f"{'TPOT ms':>7} {'TTFT s':>7} {'preempted':>9} {'wall s':>6}"
    )
    for case in [case for case in CASES if case.name in options.cases.split(",")]:
        setup, full = setup_of(case, options.traces)
        for load in map(float, options.loads.split(",")):
            for seed in map(int, options.seeds.split(",")):
                for name in options.policies.split(","):
                    suite = Suite(prefill=build_placement("least-uncached-tokens"), decode=build_placement(name))
                    spec = RunSpec(
                        setup=setup, policy=PolicyChoice(name, suite), seed=seed, rate_scale=load * full, load=load
                    )
                    rows += [_run(case, spec)]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _run(case: Case, spec: RunSpec) -> dict[str, object]:
    figures = run(spec).figures
    tpot, ttft, wall_s = figures["tpot_s"], figures["ttft_s"], figures["sim_wall_s"]
    assert isinstance(tpot, dict)
    assert isinstance(ttft, dict)
    assert isinstance(wall_s, float)
    print(
        f"{case.name:<20} {spec.load:>4} {spec.seed:>4} {spec.policy.name:<24} {tpot['p99'] * 1e3:>6.1f} ms "
        f"{ttft['p99']:>7.2f} s {tpot['mean'] * 1e3:>7.1f} {ttft['mean']:>7.3f} {figures['preemptions']!s:>9} "
        f"{wall_s:>6.0f}",
        flush=True,
    )
    return {"case": case.name, **figures}


if __name__ == "__main__":
    sys.exit(main())
