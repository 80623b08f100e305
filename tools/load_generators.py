"""Other people's load generators against our gateway, unchanged: `python tools/load_generators.py NAME...`.

Starts three engine-sims (one computes prompts, two generate) and a gateway, runs GuideLLM, AIPerf or `vllm bench serve`
from its own environment under .tools against it, and prints what it reports beside what the gateway counted. With
`--face picker` a real Envoy stands in front, the gateway is its picker, and each engine has its agent. No generator
goes to the network: each takes a tokenizer that is made here. Ends with status 1 when a request failed, or when the two
counts differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from ballast_cli.demo.ports import free_ports
from ballast_cli.demo.processes import ProcessGroup
from tests.support.envoy import EnvoySetup, PickerAt, envoy

REPOSITORY = Path(__file__).resolve().parents[1]
TOOLS = REPOSITORY / ".tools"
MODEL = "Qwen/Qwen3-32B"
REQUESTS, RPS, INPUT, OUTPUT = 40, 4, 256, 32


@dataclass(frozen=True, slots=True)
class Reported:
    """What a generator says of its run."""

    completed: int
    ttft_ms: float
    """Median."""
    tpot_ms: float
    """Median of the means of each request."""


def guidellm(url: str, tokenizer: Path, out: Path) -> Reported:
    """GuideLLM, Poisson arrivals of synthetic prompts."""
    report = out / "guidellm.json"
    _run(
        TOOLS / "guidellm/bin/guidellm", "run", "--disable-console-interactive",
        "--backend", f"kind=openai_http,target={url},model={MODEL},request_format=/v1/completions",
        "--profile", f"kind=poisson,rate={RPS}",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--data", f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={OUTPUT}",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--output", f"kind=json,path={report}",
    )  # fmt: skip
    metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    return Reported(
        completed=int(metrics["request_totals"]["successful"]),
        ttft_ms=metrics["time_to_first_token_ms"]["successful"]["median"],
        tpot_ms=metrics["inter_token_latency_ms"]["successful"]["median"],
    )


def aiperf(url: str, tokenizer: Path, out: Path) -> Reported:
    """AIPerf, Poisson arrivals of synthetic chats. Told to be offline, it would look for no folder but its cache."""
    folder = out / "aiperf"
    _run(
        TOOLS / "aiperf/bin/aiperf", "profile", "--ui", "none", "--model", MODEL, "--url", url,
        "--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--tokenizer", tokenizer,
        "--request-rate", RPS, "--request-count", REQUESTS,
        "--synthetic-input-tokens-mean", INPUT, "--synthetic-input-tokens-stddev", 0, "--output-tokens-mean", OUTPUT,
        "--output-tokens-stddev", 0, "--artifact-dir", folder, "--random-seed", 1, offline=False,
    )  # fmt: skip
    (report,) = folder.rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    return Reported(
        completed=int(found["request_count"]["avg"]),
        ttft_ms=found["time_to_first_token"]["p50"],
        tpot_ms=found["inter_token_latency"]["p50"],
    )


def vllm(url: str, tokenizer: Path, out: Path) -> Reported:
    """`vllm bench serve`, Poisson arrivals of random tokens."""
    _run(
        TOOLS / "vllm/bin/vllm", "bench", "serve", "--backend", "openai", "--base-url", url, "--model", MODEL,
        "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", INPUT,
        "--random-output-len", OUTPUT, "--num-prompts", REQUESTS, "--request-rate", RPS, "--ignore-eos", "--seed", 1,
        "--disable-tqdm", "--save-result", "--result-dir", out, "--result-filename", "vllm.json",
    )  # fmt: skip
    found = json.loads((out / "vllm.json").read_text())
    return Reported(completed=found["completed"], ttft_ms=found["median_ttft_ms"], tpot_ms=found["median_tpot_ms"])


GENERATORS: Final = {"guidellm": guidellm, "aiperf": aiperf, "vllm": vllm}


def _run(*command: Any, offline: bool = True) -> None:
    told = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if offline else {}
    words = ["nice", *map(str, command)]
    done = subprocess.run(words, env={**os.environ, **told}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{Path(words[1]).name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


def tokenizer_for(name: str, folder: Path) -> Path:
    """Made by the libraries of the generator that will read it."""
    target = folder / f"tokenizer-{name}"
    _run(TOOLS / name / "bin" / "python", REPOSITORY / "tools" / "load_tokenizer.py", target)
    return target


def counted(admin: str) -> Mapping[str, int]:
    """Requests by outcome and reason, as the gateway counts them."""
    page = httpx.get(f"{admin}/metrics", trust_env=False).text
    found: dict[str, int] = {}
    for labels, value in re.findall(r"^ballast_gateway_requests_total\{(.*)\} (\S+)$", page, re.MULTILINE):
        (outcome,) = re.findall(r'outcome="(\w+)"', labels)
        (reason,) = re.findall(r'reason="([^"]*)"', labels)
        outcome += f" ({reason})" if reason else ""
        found[outcome] = found.get(outcome, 0) + int(float(value))
    return found


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where the gateway is, once it and its engines are ready."""

    proxy: int
    picker: PickerAt
    admin: str


def start_fleet(processes: ProcessGroup, folder: Path, face: str) -> Fleet:
    """Engines, for a picker their agents, and the gateway."""
    roles = {"prefill-0": "prefill", "decode-0": "decode", "decode-1": "decode"}
    own = free_ports(4)
    listeners = dict(zip(("proxy", "admin", "extProc", "grpcHealth"), own, strict=True))
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    checks, endpoints = {}, []
    for name, role in roles.items():
        port, side, agent, pod_api = free_ports(4)
        transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
        words = ["engine-sim", "serve", MODEL, "--host", "127.0.0.1", "--port", str(port)]
        channel = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)}
        processes.start(name, [*words, "--kv-transfer-config", transfer], channel)
        checks[name] = f"http://127.0.0.1:{port}/health"
        endpoint = {"name": name, "address": f"127.0.0.1:{port}", "role": role, "profile": "h20-qwen3-32b"}
        if face == "picker":
            here = f"127.0.0.1:{agent}"
            words = ["agent", "--host", "127.0.0.1", "--port", str(agent), "--engine", endpoint["address"]]
            words += ["--pod-api-port", str(pod_api), "--token-file", str(token), "--name", name, "--address", here]
            processes.start(f"{name}-agent", words)
            checks[f"{name}-agent"] = f"http://{here}/health"
            endpoint |= {"address": here, "podApi": f"127.0.0.1:{pod_api}"}
        endpoints.append(endpoint)
    settings, fleet = folder / "gateway.yaml", folder / "endpoints.yaml"
    fleet.write_text(yaml.safe_dump({"endpoints": endpoints}))
    content: dict[str, Any] = {"model": {"servedNames": [MODEL]}, "discovery": {"file": str(fleet)}}
    content["listeners"] = {"host": "127.0.0.1", **listeners}
    if face == "picker":
        content |= {"face": "Picker", "podApi": {"tokenFile": str(token), "port": 0}}
    settings.write_text(yaml.safe_dump(content))
    processes.start("gateway", ["gateway", "--config", str(settings)])
    admin = f"http://127.0.0.1:{listeners['admin']}"
    asyncio.run(processes.ready({**checks, "gateway": f"{admin}/readyz"}))
    return Fleet(listeners["proxy"], PickerAt(listeners["extProc"], listeners["grpcHealth"]), admin)


@contextmanager
def front_door(fleet: Fleet, face: str, folder: Path) -> Iterator[str]:
    """The address that clients are given."""
    if face == "proxy":
        yield f"http://127.0.0.1:{fleet.proxy}"
        return
    setup = EnvoySetup(response_body=None, survives=True)  # as the operator sets up Envoy Gateway
    with asyncio.Runner() as runner:
        front = envoy([fleet.picker], setup, folder / "envoy")
        running = runner.run(front.__aenter__())
        try:
            yield running.url
        finally:
            runner.run(front.__aexit__(None, None, None))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="+", choices=GENERATORS, metavar="NAME", help=", ".join(GENERATORS))
    parser.add_argument("--face", choices=("proxy", "picker"), default="proxy")
    given = parser.parse_args(arguments)
    status = 0
    print(f"{'':10} {'completed':>10} {'TTFT p50 ms':>12} {'TPOT p50 ms':>12}   gateway")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = start_fleet(stack.enter_context(ProcessGroup(scratch)), scratch, given.face)
        url, admin = stack.enter_context(front_door(fleet, given.face, scratch)), fleet.admin
        for name in given.names:
            before = counted(admin)
            try:
                found = GENERATORS[name](url, tokenizer_for(name, scratch), scratch)
            except ValueError as error:
                print(f"{name:10} {error}")
                status = 1
                continue
            seen = {key: value - before.get(key, 0) for key, value in counted(admin).items()}
            print(
                f"{name:10} {found.completed:10} {found.ttft_ms:12.1f} {found.tpot_ms:12.1f}   "
                + ", ".join(f"{value} {key}" for key, value in seen.items() if value),
                flush=True,
            )
            wrong = (
                found.completed != REQUESTS
                or seen.get("completed", 0) < REQUESTS
                or any(key.startswith(("failed", "rejected")) and value for key, value in seen.items())
            )
            status |= int(bool(wrong))
    return status


if __name__ == "__main__":
    sys.exit(main())
