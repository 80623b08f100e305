"""Ten minutes of Auto on the real cluster, and the simulator's decisions on the same traffic: `make scaling-run`.

The mix shifts from prompts to long answers and back. What gateways recorded is replayed by `ballast simulate
--autoscale` from the same layout, and both sequences of decisions are printed side by side. Too long for CI; pytest
does not collect it by itself. `SCALING_RUN_S` sets another length.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_cli.demo.ports import free_port
from bench.reliability.kit.client import Fate
from kit import Cluster, Kubectl
from kit.agreement import agreement, asked_at, moves, table
from kit.quickstart import NAME
from kit.release import Release
from test_scaling import STABLE_S, TIGHT_TPOT_S, fleet, fleet_objects, load, records, serving

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

__all__ = ["fleet"]
RUN_S = float(os.environ.get("SCALING_RUN_S", "600"))
MIX = ({"prompt_tokens": 600, "output_tokens": 8}, {"prompt_tokens": 20, "output_tokens": 300})
RPS = 1.0


async def test_the_simulator_decides_alike_on_what_gateways_recorded(
    cluster: Cluster, release: Release, fleet: Kubectl, tmp_path: Path
) -> None:
    """Each move is a record with its reason; the share of time in which both ask for the same is printed."""
    flexible = {
        "like": "decode",
        "name": "flex",
        "role": "Flexible",
        "autoscaling": {"minReplicas": 2, "maxReplicas": 4},
    }
    manifests = fleet_objects(cluster, fleet, flexible, tpot_s=TIGHT_TPOT_S)
    fleet.apply(*manifests)
    await asyncio.to_thread(serving, fleet)
    sent: list[Any] = []
    for number in range(3):
        async with load(fleet, RPS, **MIX[number % 2], seed=number) as running:
            await asyncio.sleep(RUN_S / 3)
        sent += running
    fates = Counter(f"{each.fate} {each.status} {each.reason}".strip() for each in (task.result() for task in sent))
    print(f"\n{RUN_S:.0f} s of a shifting mix: {dict(fates)}")  # until it has grown, gateways shed what is too much
    assert {task.result().fate for task in sent} <= {Fate.WHOLE, Fate.REFUSED}, fates
    stored = records(fleet)
    state = json.loads(fleet.get("configmap", f"{NAME}-scaling")["data"]["state"])
    trace = tmp_path / "trace.jsonl"
    with recorded_by(fleet) as gateways:
        ballast("traffic", "--output", str(trace), *(word for url in gateways for word in ("--gateway", url)))
    first_s = json.loads(trace.read_text().splitlines()[0])["arrival_s"]
    told = moves(stored, first_s)
    assert len(told) > 2, told
    assert all(each["message"] for each in stored)

    profiles = tmp_path / "profiles.yaml"
    own = [item for item in manifests if item["kind"] == "HardwareProfile"]
    profiles.write_text(yaml.safe_dump_all(own))
    (spec,) = [item["spec"] for item in manifests if item["kind"] == "ServingPool"]
    (objective,) = [
        item["spec"]
        for item in manifests
        if item["kind"] == "ServiceLevelObjective" and item["metadata"]["name"] == spec["sloRef"]["name"]
    ]
    result = tmp_path / "rows.json"
    ballast(
        *("simulate", "--trace", str(trace), "--profiles", str(profiles), "--endpoints", "2F"),
        *("--profile", spec["pools"][0]["hardware"], "--policy", "ballast", "--json", str(result)),
        *(
            "--slo",
            f"ttft={objective['ttftS']},tpot={objective['tpotS']}",
            "--attainment",
            str(objective["attainment"]),
        ),
        *("--autoscale", f"ballast:rehearse=false,down_s={STABLE_S:g}", "--startup", str(state["startup_s"])),
        *("--min-replicas", "2", "--max-replicas", "4", "--gpu-budget", "64"),
    )
    simulated = moves(json.loads(result.read_text())[0]["autoscaling"]["decisions"], 0.0)
    until_s = time.time() - first_s
    until_s = min(until_s, RUN_S)
    print(f"\n{table(told, simulated)}")
    for within_s in (0.0, 15.0, 30.0):
        share = agreement(told, simulated, until_s, within_s=within_s)
        print(f"both ask for the same in {share:.0%} of {until_s:.0f} s, where a move may differ by {within_s:.0f} s")
    for record in stored:
        print(record["time"], record["reason"], record["message"])
    assert asked_at(told, until_s * 0.6) == asked_at(simulated, until_s * 0.6), "while answers are long"


def ballast(*words: str) -> None:
    """Run it; what it says goes to the log."""
    subprocess.run([str(Path(sys.executable).with_name("ballast")), *words], check=True, timeout=300)


@contextmanager
def recorded_by(fleet: Kubectl) -> Iterator[list[str]]:
    """The admin APIs of all gateways, by the pods' own loopback."""
    with ExitStack() as stack:
        urls = []
        for pod in fleet.items("pods", "app.kubernetes.io/component=gateway"):
            port = free_port()
            argv = ["kubectl", "--kubeconfig", str(fleet.kubeconfig), "-n", str(fleet.namespace)]
            argv += ["port-forward", f"pod/{pod['metadata']['name']}", f"{port}:9090"]
            process = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
            stack.callback(process.terminate)
            assert process.stdout is not None
            assert "Forwarding" in process.stdout.readline()
            urls.append(f"http://127.0.0.1:{port}")
        yield urls
