"""Does the simulator, given the traffic that a gateway recorded, show the latencies that the gateway's clients saw?

A gateway in front of engine-sims (processes, times of one H200 each) gets a workload from the load generator. Then
`ballast simulate --trace` of the gateway's `/ballast/v1/traffic` runs with the same layout and policy, and P50 and P99
of TTFT, TPOT and E2E stand beside those that the load generator measured. `--prompts text` shows what estimated prompt
lengths cost.

    python -m bench.traffic_replay [--workload chat] [--rate 8] [--duration 60] [--prompts ids] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

from ballast_sim.load import LoadReport, LoadSettings, run_load
from ballast_sim.workloads import load_workload
from bench.reliability.kit.engines import MODEL, PROFILE, Engine
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.installation import Installation

FIGURES = tuple((name, share) for name in ("ttft_s", "tpot_s", "e2e_s") for share in ("p50", "p99"))
POLICY = {
    "apiVersion": "serving.ballast.dev/v1alpha1",
    "kind": "SchedulingPolicy",
    "metadata": {"name": "recorded"},
    "spec": {},
}
"""A gateway's defaults."""
GOAL = 0.1
LINE = "{:<10} {:>12} {:>12} {:>8}\n"


async def measured(options: argparse.Namespace, folder: Path) -> tuple[LoadReport, list[dict[str, Any]]]:
    """The load generator's report, and the rows of the simulation of what the gateway recorded meanwhile."""
    engines = [Engine(f"{role}{k}", folder) for role, count in layout(options.shape) for k in range(count)]
    gateway = GatewayProcess(Installation(), engines, folder)
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        await gateway.start()
        requests = load_workload(
            workload=options.workload, duration_s=options.duration, rate_rps=options.rate, seed=options.seed
        )
        settings = LoadSettings(
            url=f"http://127.0.0.1:{gateway.port}", model=MODEL, prompt_kind=options.prompts, seed=options.seed
        )
        report = await run_load(settings, requests)
        return report, await simulated(options, f"{gateway.admin_url}/ballast/v1/traffic", folder)
    finally:
        await gateway.kill()
        for engine in engines:
            await engine.kill()


def layout(shape: str) -> list[tuple[str, int]]:
    """Roles and how many engines of each, of a shape such as 1P2D or 3F."""
    counts, digits = [], ""
    for character in shape:
        if character.isdigit():
            digits += character
        else:
            counts.append((character.lower(), int(digits)))
            digits = ""
    return counts


async def simulated(options: argparse.Namespace, trace: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of `ballast simulate` of a trace."""
    policy = folder / "policy.json"
    policy.write_text(json.dumps(POLICY), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ballast_cli", "simulate", "--trace", trace, "--endpoints", options.shape),
        *("--profile", PROFILE, "--policy-file", str(policy), "--json", "-", "--jobs", "1"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    if process.returncode:
        raise SystemExit(errors.decode())
    return list(json.loads(out))


def compared(report: LoadReport, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measured beside simulated, in seconds, and how far the latter is off."""
    found = []
    for name, share in FIGURES:
        seen, replayed = getattr(report, name)[share], row[name][share]
        found.append(
            {
                "figure": f"{name[:-2].upper()} {share.upper()}",
                "measured_s": seen,
                "simulated_s": replayed,
                "off": replayed / seen - 1,
            }
        )
    return found


def main(arguments: Sequence[str]) -> int:
    """Prints the table. Returns 1 where a figure is off by more than 10 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="chat", help="a built-in workload")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of arrivals")
    parser.add_argument("--shape", default="1P2D", help="engines, such as 1P2D or 3F")
    parser.add_argument("--prompts", choices=("ids", "text"), default="ids")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="traffic-replay-") as folder:
        report, [row] = uvloop.run(measured(options, Path(folder)))
    figures = compared(report, row)
    late_ms = report.late_s["p99"] * 1e3
    sys.stdout.write(
        f"{report.requests} requests, {report.failed} failed, sent at most {late_ms:.1f} ms late (P99); "
        f"simulated {row['requests']}, {row['completed']} completed\n"
    )
    sys.stdout.write(LINE.format("", "measured ms", "simulated ms", "off"))
    for each in figures:
        times = (f"{each[name] * 1e3:.1f}" for name in ("measured_s", "simulated_s"))
        sys.stdout.write(LINE.format(each["figure"], *times, f"{each['off']:+.1%}"))
    if options.json:
        case = {name: getattr(options, name) for name in ("workload", "rate", "duration", "shape", "prompts", "seed")}
        options.json.write_text(json.dumps({"case": case, "figures": figures}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(abs(each["off"]) > GOAL for each in figures) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
