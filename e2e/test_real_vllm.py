"""Real vLLM in pods that the operator made: prefill and decode on the CPU, KV handed over by NIXL from pod to pod.

What engine-sims cannot show: vLLM itself takes the generated arguments and environment, answers the probes, and finds
the other engine's side channel by the pod's address. Its environment (`make vllm`) is a volume of the machine, its
model a tiny random one; the container's Python is Debian's.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kit import Cluster, Kubectl, wait_until
from kit.quickstart import condition
from kit.release import Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.xdist_group("vllm"), pytest.mark.rotating(4)]

ROOT = Path(__file__).resolve().parents[1]
VLLM = ROOT / ".tools" / "vllm"
NAME = "real"
SELECTOR = f"serving.ballast.dev/serving-pool={NAME}"
MEMORY_GIB = 7
"""Two engines take 2.5 each, beside the cluster."""
START_S = 420.0
"""Two engines that start together on two busy cores."""
MAX_TOKENS = 24
ATTEMPTS = 4
"""Chats, each with a prompt of its own. A hand-off of engines that are short of cores may fail: vLLM gives it up."""
SETTLE_S = 12.0
"""Until engines have counted: vLLM logs its figures within 10 s."""
IMPORTS = (
    "import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker, "
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
)
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "What is prefill, what is decode, and who computes which? " * 8}],
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
}


def _require(cluster: Cluster) -> None:
    """Skip where it cannot run, and fail there in CI: the test bed's machine has all that it needs."""
    if not cluster.is_testbed:
        pytest.skip("vLLM's environment is a folder of this machine, which other clusters' nodes do not have")
    lacking = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    if not (VLLM / "lib" / "python3.11").exists() or not (VLLM / ".installed").exists():
        lacking("no vLLM for Python 3.11, the image's; run `make vllm PYTHON=python3.11`")
    (available,) = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if int(available) < MEMORY_GIB * 2**20:
        lacking(f"two engines need {MEMORY_GIB} GiB of memory, and {int(available) // 2**20} are free")


def folder_as_claim(name: str, namespace: str, folder: Path) -> list[dict[str, Any]]:
    """A folder of the machine as a PersistentVolumeClaim: Pod Security "restricted" takes no hostPath in a pod."""
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = f"{namespace}-{name}"
    place = {"hostPath": {"path": str(folder.resolve()), "type": "Directory"}}
    claim = {"name": name, "namespace": namespace}
    metadata = {"name": volume, "labels": {"serving.ballast.dev/e2e": namespace}}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": metadata,
            "spec": {**common, **place, "capacity": size, "claimRef": claim},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": claim,
            "spec": {**common, "resources": {"requests": size}, "volumeName": volume},
        },
    ]


def serving_pool(image: str, hardware: str) -> list[dict[str, Any]]:
    """One prefill and one decode engine, and their profile. Only what a machine without GPUs needs is set by hand."""
    api_version = "serving.ballast.dev/v1alpha1"
    speeds = {"overheadMs": 1.0, "aMs": 2.0, "dMsPerToken": 0.1, "kMsPerKvToken": 1e-6, "sMsPerPair": 1e-6}
    sizes = {"kvTokens": 1_000_000, "kvBytesPerToken": 1024, "blockSize": 32}
    batches = {"bMsPerSeq": 0.1, "maxNumBatchedTokens": 2048, "maxNumSeqs": 16, "linkGbps": 10, "linkSetupS": 0.01}
    container = {
        "name": "engine",
        "resources": {"requests": {"cpu": "100m", "memory": "2Gi"}},
        "volumeMounts": [{"name": "vllm", "mountPath": "/opt/vllm", "readOnly": True}],
    }
    claim = {"name": "vllm", "persistentVolumeClaim": {"claimName": "vllm", "readOnly": True}}
    pool = {"hardware": hardware, "replicas": 1, "template": {"spec": {"containers": [container], "volumes": [claim]}}}
    environment = {
        "PYTHONPATH": "/opt/vllm/lib/python3.11/site-packages",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "$(POD_IP)",
        "UCX_NET_DEVICES": "eth0",
        "UCX_TLS": "tcp,self",
    }
    cores = os.cpu_count() or 1
    bind = "VLLM_CPU_OMP_THREADS_BIND"
    spec = {
        "model": {
            "name": "/models/tiny",
            "servedNames": ["tiny"],
            "maxModelLen": 2048,
            "volume": {"claim": "model", "mountPath": "/models"},
        },
        "engine": {
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/usr/bin/python3", "/opt/vllm/bin/vllm"],
            "args": ["--dtype", "float32", "--enforce-eager", "--seed", "7"],
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "kvConnector": {"type": "NixlConnector", "config": {"kv_buffer_device": "cpu"}},
        },
        "pools": [
            {"name": "prefill", "role": "Prefill", "env": [{"name": bind, "value": "0"}], **pool},
            {"name": "decode", "role": "Decode", "env": [{"name": bind, "value": str(1 % cores)}], **pool},
        ],
        # An engine that holds KV polls without a pause: with few cores the other one is silent for long.
        "gateway": {"replicas": 1, "settings": {"scrape": {"intervalS": 1.0, "timeoutS": 30.0}}},
    }
    return [
        {
            "apiVersion": api_version,
            "kind": "HardwareProfile",
            "metadata": {"name": hardware},
            "spec": {"hardware": "one core", **speeds, **sizes, **batches},
        },
        {"apiVersion": api_version, "kind": "ServingPool", "metadata": {"name": NAME}, "spec": spec},
    ]


@pytest.fixture
def fleet(cluster: Cluster, release: Release, namespace: str, tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl in a namespace in which two real engines serve."""
    _require(cluster)
    tiny = tmp_path / "models" / "tiny"
    python = VLLM / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools"), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([python, "-m", "tiny_model", tiny], env=environment, check=True, timeout=300)
    # Pods may not write next to vLLM's sources: what is not compiled yet would be compiled by six processes.
    subprocess.run([python, "-c", IMPORTS], env=environment, check=True, timeout=300, capture_output=True)
    (tiny / "model.safetensors").chmod(0o644)  # engines run as a user of their own
    kubectl, hardware = cluster.kubectl.within(namespace), f"cpu-{namespace}"
    try:
        kubectl.apply(
            *folder_as_claim("vllm", namespace, VLLM),
            *folder_as_claim("model", namespace, tiny.parent),
            *serving_pool(cluster.images.ballast, hardware),
        )
        wait_until(lambda: _serves(kubectl), START_S, "both engines and the gateway serve", poll_s=1.0)
        yield kubectl
    finally:
        kubectl.run("delete", "servingpool", NAME, "--ignore-not-found", "--wait=false", check=False)
        cluster.kubectl.delete_named("hardwareprofile", hardware)
        cluster.kubectl.run("delete", "pv", f"--selector=serving.ballast.dev/e2e={namespace}", "--wait=false")


def _serves(kubectl: Kubectl) -> bool:
    """Whether the ServingPool is available; an engine that has ended by itself fails at once, with its log."""
    for pod in kubectl.items("pods", f"{SELECTOR},app.kubernetes.io/component=engine"):
        for each in pod["status"].get("containerStatuses", ()):
            if each["restartCount"]:
                name = pod["metadata"]["name"]
                pytest.fail(f"{name} has restarted:\n{kubectl.logs(f'pod/{name}', '--previous', '--tail=60')}")
    pool = kubectl.get("servingpool", NAME)
    return (
        condition(pool, "Available").get("status") == "True" and condition(pool, "Progressing").get("status") == "False"
    )


def engine_url(kubectl: Kubectl, pool: str) -> str:
    """Address of the one engine of a pool."""
    (pod,) = kubectl.items("pods", f"{SELECTOR},app.kubernetes.io/component=engine,serving.ballast.dev/pool={pool}")
    return f"http://{pod['status']['podIP']}:8000"


def counted(client: httpx.Client, url: str, name: str, labels: str = "") -> float:
    """Sum of the samples of a metric whose labels contain this text."""
    text = client.get(f"{url}/metrics").raise_for_status().text
    samples = re.findall(rf"^{re.escape(name)}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE)
    assert samples, f"{url} has no {name}"
    return sum(float(value) for found, value in samples if labels in found)


def streamed(client: httpx.Client, url: str, chat: dict[str, Any]) -> tuple[str, str, int]:
    """Text, reason of the end, and number of tokens of the streamed chat."""
    body = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    text, reason, tokens, whole = "", "", 0, False
    with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            whole = whole or line == "data: [DONE]"
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    assert whole, f"the stream broke off after {text!r}"
    return text, reason, tokens


def test_a_streamed_chat_crosses_two_real_engines(fleet: Kubectl) -> None:
    """It is what one engine alone answers. The prompt was computed in the prefill pod, its KV read from there by the
    decode pod, which generated; and nothing of the ServingPool is left after its deletion."""
    gateway = f"http://{fleet.get('service', f'{NAME}-gateway')['spec']['clusterIP']}"
    prefill, decode = engine_url(fleet, "prefill"), engine_url(fleet, "decode")
    with httpx.Client(timeout=300, trust_env=False) as client:
        # A first request compiles, and a first hand-off shakes hands, which vLLM gives up after some seconds if both
        # engines are busy. What it computes must not be in the prefix cache: another prompt.
        first = {**CHAT, "messages": [{"role": "user", "content": "Are you there? " * 20}], "max_tokens": 2}

        def warm() -> bool:
            return client.post(f"{gateway}/v1/chat/completions", json=first).status_code == 200

        wait_until(warm, 120, "a first request is answered", poll_s=1.0)
        transferred = "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"'

        def counts() -> dict[str, float]:
            return {
                "prefilled": counted(client, prefill, "vllm:prompt_tokens_total"),
                "generated by prefill": counted(client, prefill, "vllm:generation_tokens_total"),
                "read by decode": counted(client, decode, *transferred),
                "generated by decode": counted(client, decode, "vllm:generation_tokens_total"),
            }

        for attempt in range(ATTEMPTS):
            question = f"{attempt}: {CHAT['messages'][0]['content']}"
            chat = {**CHAT, "messages": [{"role": "user", "content": question}]}
            before = counts()
            text, reason, tokens = streamed(client, gateway, chat)
            time.sleep(SETTLE_S)
            after = counts()
            alone = client.post(f"{prefill}/v1/chat/completions", json=chat).raise_for_status().json()
            prompt_tokens = alone["usage"]["prompt_tokens"]
            grown = {key: after[key] - before[key] for key in after}
            print(f"\n{prompt_tokens} prompt tokens: {grown}; answer: {text!r}")
            assert text == alone["choices"][0]["message"]["content"]
            assert (reason, tokens) == ("length", MAX_TOKENS)
            if grown["read by decode"]:  # else the hand-off failed, and the stream went on where it was computed
                break
    assert (grown["prefilled"], grown["generated by prefill"]) == (prompt_tokens, 1)
    assert prompt_tokens - 32 < grown["read by decode"] <= prompt_tokens  # whole blocks
    assert grown["generated by decode"] >= MAX_TOKENS - 1

    fleet.run("delete", "servingpool", NAME, "--cascade=foreground", "--timeout=60s", timeout_s=70)
    kinds = "deployments,replicasets,services,configmaps,serviceaccounts,roles,rolebindings,secrets,leases"
    wait_until(lambda: not fleet.items(f"{kinds},pods", SELECTOR), 120, "nothing of the ServingPool is left")
