"""The proxy face beside other routers from PyPI, in front of the same engines: processor time and latency of a request.

Ours under its default policy; `vllm-router`, `sglang-router` and `smg` (Rust) under their cache-aware policies,
`litellm` (Python) under its own, with fewer requests; each with its defaults otherwise, as one process. Engines and
load are those of `proxy_bench`: engines answer at once, so proxies are measured. Plain requests by all; with prefill
and decode apart by ours and by `vllm-router`, which alone of these speaks vLLM's protocol for it. All take turns in
each round; medians. What ours does beside is on: tokens of streams kept to carry them on elsewhere, scrapes, a ledger.
`make peers` installs them. Prints a table; `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop

from ballast_cli.demo.ports import free_port
from bench.proxy_bench import SPLIT, Subject, engines, gateway, measure

FOLDER = Path(__file__).parents[1] / ".tools/peers/bin"
OURS = "ballast"
LITELLM = "litellm"
UNSPLIT = ("flexible",) * 4
START_S = 60


@dataclass(frozen=True)
class Peer:
    """A router and its command line; `{port}` is where it listens, `{metrics}` where it may have its metrics."""

    name: str
    command: tuple[str, ...]
    splits: bool = False

    def argv(self, ports: list[int], port: int, metrics: int) -> list[str]:
        """The whole command."""
        urls = [f"http://127.0.0.1:{each}" for each in ports]
        if self.splits:
            middle = len(urls) // 2
            at = [part for url in urls[:middle] for part in ("--prefill", url)]
            at += [part for url in urls[middle:] for part in ("--decode", url)]
        else:
            at = ["--worker-urls", *urls]
        given = [part.format(port=port, metrics=metrics) for part in self.command]
        return [str(FOLDER / given[0]), *given[1:], *at]


_AT = ("--host", "127.0.0.1", "--port", "{port}", "--prometheus-port", "{metrics}")
_QUIET = ("--log-level", "error")
PLAIN = (
    Peer("vllm-router", ("vllm-router", *_AT, *_QUIET, "--policy", "cache_aware")),
    Peer("sglang-router", ("sglang-router", "launch", *_AT, *_QUIET, "--policy", "cache_aware")),
    Peer("smg", ("smg", "launch", *_AT, *_QUIET, "--policy", "cache_aware")),
)
APART = (Peer("vllm-router", ("vllm-router", *_AT, *_QUIET, "--vllm-pd-disaggregation"), splits=True),)


@contextlib.contextmanager
def _running(name: str, command: list[str], port: int, folder: Path, **more: str) -> Iterator[Subject]:
    with (folder / f"{name}-{port}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **more})
    try:
        _wait(name, process, port, folder / f"{name}-{port}.log")
        yield Subject(name, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    body = {"model": "tiny", "prompt": "word", "max_tokens": 1, "stream": False}
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    sys.exit(f"{name} does not serve:\n{log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def peer(which: Peer, ports: list[int], folder: Path) -> Iterator[Subject]:
    """A router in front of the engines."""
    port, metrics = free_port(), free_port()
    with _running(which.name, which.argv(ports, port, metrics), port, folder) as subject:
        yield subject


@contextlib.contextmanager
def litellm(ports: list[int], folder: Path) -> Iterator[Subject]:
    """LiteLLM's proxy with one deployment for each engine."""
    params = [{"model": "hosted_vllm/tiny", "api_base": f"http://127.0.0.1:{at}/v1", "api_key": "x"} for at in ports]
    models = [{"model_name": "tiny", "litellm_params": each} for each in params]
    (folder / "litellm.yaml").write_text(json.dumps({"model_list": models}))
    port = free_port()
    command = [str(FOLDER / "litellm"), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    unlocked = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOG": "ERROR"}
    with _running(LITELLM, command, port, folder, **unlocked) as subject:
        yield subject


def table(figures: dict[str, dict[str, float]]) -> str:
    """A row for each router and load."""
    lines = [f"{'':42}{'rps':>8}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms':>9}{'of ours':>9}"]
    for name, row in sorted(figures.items(), key=lambda item: item[0].rpartition(",")[0]):
        key = "cpu_ms" if "rps" in row else "cpu_ms_per_1000"
        ours = figures[f"{name.rpartition(',')[0]}, {OURS}"][key]
        ratio = f"{row[key] / ours:>9.2f}" if row[key] else ""
        if "rps" in row:
            lines.append(f"{name:42}{row['rps']:8.0f}{row['p50_ms']:9.2f}{row['p99_ms']:9.2f}{row[key]:9.3f}{ratio}")
        else:
            late = f"{row['delay_p50_ms']:9.2f}{row['delay_p99_ms']:9.2f}"
            lines.append(f"{name + ' (late by)':42}{'':8}{late}{row[key]:9.1f}{ratio}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3_000, help="of each kind per round (default 3000)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not FOLDER.exists():
        sys.exit("no peers here: run `make peers`")
    found = {}
    for title, roles, peers in (("plain", UNSPLIT, PLAIN), ("prefill and decode apart", None, APART)):
        with contextlib.ExitStack() as running:
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="peers-bench-")))
            ports = running.enter_context(engines())
            subjects = [running.enter_context(gateway(OURS, ports, "", rescue=True, roles=roles or SPLIT))]
            subjects += [running.enter_context(peer(each, ports, folder)) for each in peers]
            if roles is not None:
                subjects.append(running.enter_context(litellm(ports, folder)))
            figures = uvloop.run(
                measure(
                    subjects,
                    options.rounds,
                    options.requests,
                    slow=(LITELLM,),
                    slow_count=max(320, options.requests // 10),
                )
            )
        sys.stdout.write(f"\n{title}; CPU: of a request, of 1,000 chunks of paced streams\n{table(figures)}\n")
        found[title] = figures
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
