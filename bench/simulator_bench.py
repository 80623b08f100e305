"""How fast the simulator is: simulated requests and tokens a second on one core, by workload and policy.

Prefill endpoints in proportion, 64 decode endpoints, load 0.7 by arithmetic. Prints a table; `--json FILE` writes the
figures, `--against FILE` compares with those of another run, in units of a fixed piece of numpy work
(`bench/comparison.py`).

`--goal` runs the two set-ups of the goal, 10,000 requests of short and of long outputs on 64 decode endpoints within
20 s of one core: by sibyl, or by the policies of `--policy`. `--stepwise` computes every engine step by itself, the
plain way that the jumps are to be compared with.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B
from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import parse_policies
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, run
from bench.comparison import Calibration, Earlier, Recording, Row

DECODE_ENDPOINTS = 64
LOAD = 0.7
WORKLOADS = (("chat", 10_000), ("sharegpt-reasoning", 500))
GOAL = (("chat", 10_000), ("sharegpt-reasoning", 10_000))
LINE = "{:<20} {:<16} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8}"
SPEEDS = (("wall_s", 1), ("processor_s", 1), ("requests_per_s", 0), ("tokens_per_s", 0))
KEY = ("workload", "requests", "policy", "stepwise")
POLICIES = ("least-requests", "sibyl", "ballast")


def setup_of(workload: str, requests: int) -> tuple[Setup, float]:
    """A fleet near balance for a workload, and the rate scale of the load."""
    source = WorkloadSource(workload=workload, limit=requests)
    sample = source.load(0, 1.0)
    lengths = LengthStatistics.of(sample.requests)
    decode = DECODE_ENDPOINTS * decode_rps(H20_QWEN3_32B, lengths)
    prefill_endpoints = max(1, math.ceil(decode / prefill_rps(A100_QWEN3_32B, lengths)))
    shape = f"{prefill_endpoints}P@a100-qwen3-32b,{DECODE_ENDPOINTS}D@h20-qwen3-32b"
    assert sample.rate_rps is not None
    return Setup(machines=parse_shape(shape), shape=shape, source=source), LOAD * decode / sample.rate_rps


def measure(workload: str, requests: int, policy: str, *, stepwise: bool = False) -> dict[str, Any]:
    """One run's speed."""
    setup, scale = setup_of(workload, requests)
    spec = RunSpec(setup=setup, policy=parse_policies(policy)[0], rate_scale=scale)
    started_s = time.process_time()
    figures = run(spec, stepwise=stepwise).figures
    processor_s = time.process_time() - started_s
    wall_s: Any = figures["sim_wall_s"]
    tokens: Any = figures["throughput_tok_s"]
    span_s: Any = figures["duration_s"]
    decision: Any = figures["decision_us"]
    return {
        "workload": workload,
        "policy": policy,
        "shape": setup.shape,
        "requests": requests,
        "stepwise": stepwise,
        "wall_s": wall_s,
        "processor_s": processor_s,
        "requests_per_s": requests / wall_s,
        "tokens_per_s": tokens * span_s / wall_s,
        "speed_up": span_s / wall_s,
        "decision_p50_us": decision["p50"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests to simulate (default 1)")
    parser.add_argument("--policy", help=f"default {','.join(POLICIES)}; with --goal sibyl")
    parser.add_argument("--goal", action="store_true", help="the set-ups of the goal")
    parser.add_argument("--stepwise", action="store_true", help="compute every engine step by itself")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--against", type=Path, help="a file of an earlier run to compare with")
    options = parser.parse_args()
    earlier = Earlier(options.against, lambda row: tuple(row[name] for name in KEY))
    calibration, rows = Calibration(), list[Row]()
    print(LINE.format("workload", "policy", "requests", "wall s", "cpu s", "requests/s", "tokens/s", "earlier"))
    policies = options.policy.split(",") if options.policy else ("sibyl",) if options.goal else POLICIES
    for workload, requests in GOAL if options.goal else WORKLOADS:
        for policy in policies:
            calibration.take()
            row = measure(workload, max(10, round(requests * options.scale)), policy, stepwise=options.stepwise)
            ratio = earlier.time_ratio(row, "wall_s", calibration)
            speeds = [f"{row[name]:.{digits}f}" for name, digits in SPEEDS]
            print(
                LINE.format(workload, policy, row["requests"], *speeds, f"x {1 / ratio:.2f}" if ratio else "-"),
                flush=True,
            )
            rows.append(row)
    if options.json:
        Recording(calibration.seconds, rows).write(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
