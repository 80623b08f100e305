"""Real vLLM under the operator: one prefill and one decode engine on the CPU, KV handed over by NIXL between two nodes.

The image has a Python and no vLLM: that and the tiny model come by volumes, as a user's weights do. All else is what
the operator generates: arguments, probes, side channel, hook.
"""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kit import Cluster, Kubectl, wait_until
from kit.quickstart import NAME, condition, engine_pods, is_ready
from kit.release import Release

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("real-vllm"),
    pytest.mark.rotating(3),
]

_ROOT = Path(__file__).resolve().parents[1]
VLLM = _ROOT / ".tools" / "vllm"
PACKAGES = "/vllm/lib/python3.11/site-packages"
"""Of the mounted environment; the image's own Python, which is a 3.11, too, runs it."""
NEEDED_GIB = 8
"""Two engines have 2.5 each, and a cluster runs beside them."""
START_S = 900
LEASE_S = 90
"""An engine that keeps KV polls without a pause: with few cores, others then wait for theirs."""
API = "serving.ballast.dev/v1alpha1"


def _missing() -> str:
    if not (VLLM / ".installed").exists():
        return "vLLM is not installed; `make vllm` does that (3.5 GB)"
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free_gib = int(fields["MemAvailable"].split()[0]) / 2**20
    if free_gib < NEEDED_GIB:
        return f"{free_gib:.1f} GiB of memory are free; two engines need {NEEDED_GIB}"
    return ""


@pytest.fixture
def folder(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, where every user may read it."""
    why = "it runs on nodes of this machine" if not cluster.is_testbed else _missing()
    if why and os.environ.get("CI") == "true":
        pytest.fail(why)
    if why:
        pytest.skip(why)
    made = tmp_path_factory.mktemp("models")
    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "tools")}
    subprocess.run(
        [VLLM / "bin" / "python", "-m", "tiny_model", made / "tiny"], env=environment, check=True, timeout=300
    )
    made.chmod(0o755)
    return made


def _volume(name: str, namespace: str, path: Path) -> list[dict[str, Any]]:
    """A folder of this machine as a claim that pods on all nodes may read."""
    size = {"storage": "8Gi"}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{name}-{namespace}"},
            "spec": {
                **common,
                "capacity": size,
                "hostPath": {"path": str(path.resolve()), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": name},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**common, "resources": {"requests": size}, "volumeName": f"{name}-{namespace}"},
        },
    ]


def _profile(name: str, hardware: str) -> dict[str, Any]:
    """Rough numbers of a CPU; blocks of 32 are the smallest that vLLM takes there."""
    spec = {
        "gpus": 1,
        "overheadMs": 5.0,
        "aMs": 10.0,
        "dMsPerToken": 0.5,
        "kMsPerKvToken": 1e-4,
        "sMsPerPair": 1e-6,
        "bMsPerSeq": 1.0,
        "kvTokens": 32_768,
        "kvBytesPerToken": 1024,
        "blockSize": 32,
        "maxNumSeqs": 16,
        "maxNumBatchedTokens": 2048,
        "nodeSelector": {"serving.ballast.dev/hardware": hardware},
    }
    return {"apiVersion": API, "kind": "HardwareProfile", "metadata": {"name": name}, "spec": spec}


def _serving_pool(cluster: Cluster, namespace: str) -> dict[str, Any]:
    variables = {
        "PYTHONPATH": PACKAGES,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "$(POD_IP)",
        "UCX_TLS": "tcp,self",
    }
    container = {
        "name": "engine",
        "resources": {"requests": {"cpu": "50m", "memory": "2Gi"}},
        "volumeMounts": [{"name": "vllm", "mountPath": "/vllm", "readOnly": True}],
    }
    volume = {"name": "vllm", "persistentVolumeClaim": {"claimName": "vllm", "readOnly": True}}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    pools = [
        {
            "name": role.lower(),
            "role": role,
            "hardware": f"cpu-{hardware}-{namespace}",
            "replicas": 1,
            "template": template,
            "env": [{"name": "VLLM_CPU_OMP_THREADS_BIND", "value": str(core % (os.cpu_count() or 1))}],
        }
        for core, (role, hardware) in enumerate((("Prefill", "a100"), ("Decode", "h20")))
    ]
    spec = {
        "model": {
            "name": "/models/tiny",
            "servedNames": ["tiny"],
            "maxModelLen": 2048,
            "volume": {"claim": "models"},
        },
        "engine": {
            "image": cluster.images.ballast,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/usr/bin/python3", "-m", "vllm.entrypoints.cli.main"],
            "args": ["--dtype", "float32", "--enforce-eager", "--seed", "7"],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "kvConnector": {
                "config": {"kv_buffer_device": "cpu", "kv_connector_extra_config": {"kv_lease_duration": LEASE_S}}
            },
        },
        "pools": pools,
        "gateway": {"replicas": 1, "settings": {"scrape": {"intervalS": 1.0, "timeoutS": 30.0}}},
    }
    return {"apiVersion": API, "kind": "ServingPool", "metadata": {"name": NAME}, "spec": spec}


@pytest.fixture
def fleet(cluster: Cluster, release: Release, namespace: str, folder: Path) -> Iterator[Kubectl]:
    """Two engines that are ready."""
    kubectl = cluster.kubectl.within(namespace)
    volumes = [*_volume("models", namespace, folder), *_volume("vllm", namespace, VLLM)]
    profiles = [_profile(f"cpu-{hardware}-{namespace}", hardware) for hardware in ("a100", "h20")]
    kubectl.apply(*volumes, *profiles, _serving_pool(cluster, namespace))
    began_s = time.monotonic()

    def serves() -> bool:
        pods = engine_pods(kubectl)
        restarts = [each["restartCount"] for pod in pods for each in pod["status"].get("containerStatuses", [])]
        if any(restarts):
            raise RuntimeError("an engine ended; its log is in the diagnostics")
        available = condition(kubectl.get("servingpool", NAME), "Available").get("status") == "True"
        return available and len(pods) == 2 and all(map(is_ready, pods))

    try:
        wait_until(serves, START_S, "two real engines serve", poll_s=2.0)
        print(f"\nready after {time.monotonic() - began_s:.0f} s")
        yield kubectl
    finally:
        kubectl.run("delete", "servingpool", NAME, "--wait=false", check=False)
        kubectl.run("delete", "pods", "--all", "--now", "--timeout=60s", timeout_s=70, check=False)
        for name in ("models", "vllm"):
            cluster.kubectl.run("delete", "pv", f"{name}-{namespace}", "--wait=false", check=False)
        for each in profiles:
            cluster.kubectl.delete_named("hardwareprofile", each["metadata"]["name"])
        shutil.rmtree(folder, ignore_errors=True)


def total(page: str, metric: str, label: str = "") -> float:
    """The sum over the series of a metric, of those with this text among their labels."""
    lines = [line for line in page.splitlines() if line.startswith(f"{metric}{{") and label in line]
    return sum(float(line.rsplit(" ", 1)[-1]) for line in lines)


async def test_a_streamed_chat_is_disaggregated_between_two_real_engines(fleet: Kubectl) -> None:
    """The client sees the words of one engine alone, one after the other; the decode engine has read the prompt's KV
    from the prefill engine. A pod that is empty then goes at once: the hook understands vLLM's metrics."""
    pods = {pod["metadata"]["labels"]["serving.ballast.dev/role"]: pod for pod in engine_pods(fleet)}
    urls = {role: f"http://{pod['status']['podIP']}:8000" for role, pod in pods.items()}
    urls["gateway"] = f"http://{fleet.get('service', f'{NAME}-gateway')['spec']['clusterIP']}"
    said = " ".join(f"Sentence {number} of a long question." for number in range(40))
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": said}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
    }
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        alone = (await client.post(f"{urls['prefill']}/v1/chat/completions", json=body)).raise_for_status().json()
        for _ in range(5):  # a first hand-off shakes hands, which vLLM gives up after some seconds where cores lack
            other = {**body, "max_tokens": 2, "messages": [{"role": "user", "content": "Another question. " * 40}]}
            warm = await client.post(f"{urls['gateway']}/v1/chat/completions", json=other)
            if warm.status_code == 200:
                break
        assert warm.status_code == 200, warm.text
        before = {role: (await client.get(f"{url}/metrics")).text for role, url in urls.items() if role != "gateway"}
        words, times_s = [], []
        async with client.stream(
            "POST", f"{urls['gateway']}/v1/chat/completions", json={**body, "stream": True}
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        words.append(choice["delta"].get("content") or "")
                        times_s.append(time.monotonic())
        after = {role: (await client.get(f"{url}/metrics")).text for role, url in urls.items() if role != "gateway"}

    assert "".join(words) == alone["choices"][0]["message"]["content"]
    assert len([each for each in words if each]) >= 8, words
    assert len(set(times_s)) >= 8

    def grown(role: str, metric: str, label: str = "") -> float:
        return total(after[role], metric, label) - total(before[role], metric, label)

    read = grown("decode", "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"')
    moved = grown("decode", "vllm:nixl_bytes_transferred_count")
    print(f"\n{read:.0f} prompt tokens read in {moved:.0f} transfers, {len(words)} events")
    assert read >= 200
    assert moved >= 1
    assert grown("prefill", "vllm:generation_tokens_total") <= 1
    assert grown("decode", "vllm:generation_tokens_total") >= 23
    entries = [json.loads(line) for line in fleet.logs(f"deployment/{NAME}-gateway").splitlines() if "decode" in line]
    told = [entry for entry in entries if entry.get("outcome") == "completed"][-1]
    assert (told["prefill"], told["decode"]) == tuple(pods[role]["metadata"]["name"] for role in ("prefill", "decode"))

    name = pods["prefill"]["metadata"]["name"]
    began_s = time.monotonic()
    fleet.run("delete", "pod", name, "--wait=false")

    def gone() -> bool:
        return name not in {pod["metadata"]["name"] for pod in engine_pods(fleet, "prefill")}

    await asyncio.to_thread(wait_until, gone, 120, "the empty prefill pod is gone", 1.0)
    print(f"gone after {time.monotonic() - began_s:.0f} s")
