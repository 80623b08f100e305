"""What the engine model and engine-sim cost: simulated requests a second, and server CPU for each streamed token.

Processor time, so other work on the machine matters little. Prints a table; `--json FILE` writes the figures. They are
this machine's: compare within one run.
"""

import argparse
import asyncio
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from ballast_cli.demo.ports import free_port
from ballast_core.profiles import H200_LLAMA3_8B
from ballast_sim.engine import CoarseEngine, Engine, EngineConfig, EngineRequest, Finished, UniqueContent
from ballast_sim.load import LoadSettings, run_load
from ballast_sim.workloads import WorkloadRequest, generate

CONCURRENCIES = (1, 16, 64)
TOKENS = 200


def simulate(workload: str, requests: int, rate_rps: float, kind: type[Engine]) -> dict[str, Any]:
    """One engine at this rate: processor seconds for all requests."""
    rows = generate(workload, rate_rps=rate_rps, duration_s=math.inf, limit=requests)
    engine = kind(EngineConfig.from_profile(H200_LLAMA3_8B))
    pending = [
        EngineRequest(
            request_id=str(number),
            input_tokens=row.input_tokens,
            max_tokens=row.output_tokens,
            content=UniqueContent(number),
            arrival_s=row.arrival_s,
        )
        for number, row in enumerate(rows)
    ]
    pending.reverse()
    done = tokens = 0
    start_s = time.process_time()
    while done < requests:
        due_s = engine.next_event_s()
        if pending and pending[-1].arrival_s <= due_s:
            request = pending.pop()
            engine.add(request, request.arrival_s)
            continue
        for event in engine.advance(due_s):
            if isinstance(event, Finished):
                done += 1
                tokens += event.stats.output_tokens
    cpu_s = time.process_time() - start_s
    return {
        "engine": kind.__name__,
        "workload": workload,
        "rate_rps": rate_rps,
        "requests_per_cpu_s": requests / cpu_s,
        "us_per_token": cpu_s / tokens * 1e6,
    }


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def _drive(port: int, concurrency: int) -> int:
    """Streams in parallel, all at once; returns the tokens that came."""
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                await client.get(f"{url}/health")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.05)
    rows = [WorkloadRequest(arrival_s=0.0, input_tokens=1000, output_tokens=TOKENS)] * concurrency
    report = await run_load(LoadSettings(url=url, model="m"), rows)
    if report.failed:
        raise SystemExit(f"{report.failed} requests failed: {report.failures[:1]}")
    return report.output_tokens


def stream(concurrency: int) -> dict[str, float]:
    """A server process: its processor time, start-up taken out by a run without requests."""

    def cpu_s(streams: int) -> tuple[float, int]:
        before_s, port = _children_cpu_s(), free_port()
        command = [sys.executable, "-m", "ballast_cli", "engine-sim", "serve", "m", "--host", "127.0.0.1"]
        process = subprocess.Popen(
            [*command, "--port", str(port), "--profile", H200_LLAMA3_8B.name], stderr=subprocess.DEVNULL
        )
        try:
            tokens = asyncio.run(_drive(port, streams))
        finally:
            process.terminate()
            process.wait()
        return _children_cpu_s() - before_s, tokens

    (idle_s, _), (busy_s, tokens) = cpu_s(0), cpu_s(concurrency)
    return {"streams": concurrency, "tokens": tokens, "ms_per_1000_tokens": (busy_s - idle_s) / tokens * 1e6}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("engine model                              requests/CPU s   us/token")
    simulated: list[dict[str, Any]] = []
    for workload, requests, rate in (("chat", 1000, 2.0), ("chat", 1000, 8.0), ("sharegpt-reasoning", 300, 0.8)):
        for kind in (Engine, CoarseEngine):
            row = simulate(workload, requests, rate, kind)
            simulated.append(row)
            print(
                f"  {workload:18} {rate:4.1f} req/s {kind.__name__:12} "
                f"{row['requests_per_cpu_s']:14,.0f} {row['us_per_token']:10.2f}"
            )
    streamed = [stream(concurrency) for concurrency in CONCURRENCIES]
    print("engine-sim          ms CPU per 1,000 streamed tokens (requests included)")
    for row in streamed:
        print(f"  {row['streams']:3.0f} streams {row['ms_per_1000_tokens']:22.1f}")
    if options.json:
        options.json.write_text(json.dumps({"simulated": simulated, "streamed": streamed}, indent=2) + "\n")


if __name__ == "__main__":
    main()
