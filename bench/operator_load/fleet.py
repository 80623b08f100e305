"""ServingPools by the hundred, and who plays their nodes: Kubernetes' own controllers with KWOK, or a loop of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml

from ballast_cli.demo.ports import free_ports
from bench.operator_load import ROOT
from bench.operator_load.server import Manifest, Server, process
from testbed.build import GO_ROOT, KWOK, bin_folder

GROUP = "/apis/serving.ballast.dev/v1alpha1"
FLEET = 10
"""ServingPools of a namespace."""


def namespace_of(number: int) -> str:
    """Of one of the ServingPools."""
    return f"team-{number // FLEET}"


def serving_pool(number: int, batch: int, *, decode: str = "decode", replicas: int = 2) -> Manifest:
    """One prefill and `replicas` decode instances; `batch` is what edits change."""
    args = ["--max-num-seqs", str(batch)]
    pools = [("prefill", "Prefill", 1), (decode, "Decode", replicas)]
    return {
        "apiVersion": "serving.ballast.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": f"chat-{number}", "namespace": namespace_of(number)},
        "spec": {
            "model": {"name": "org/model"},
            "engine": {"image": "registry.test/engine:1", "args": args},
            "policyRef": {"name": "fair"},
            "pools": [
                {"name": name, "role": role, "replicas": count, "hardware": "h20"} for name, role, count in pools
            ],
        },
    }


PROFILE: Manifest = {
    "apiVersion": "serving.ballast.dev/v1alpha1",
    "kind": "HardwareProfile",
    "metadata": {"name": "h20"},
    "spec": {"gpus": 1, "overheadMs": 1.0, "aMs": 16.0, "dMsPerToken": 0.1, "kMsPerKvToken": 1e-5, "sMsPerPair": 1e-6,
             "bMsPerSeq": 0.05, "kvTokens": 100_000, "kvBytesPerToken": 262_144, "nodeSelector": {"hardware": "h20"}},
}  # fmt: skip


def policy(namespace: str) -> Manifest:
    """A SchedulingPolicy."""
    spec = {"prefill": {"type": "round-robin"}, "decode": {"type": "round-robin"}}
    metadata = {"name": "fair", "namespace": namespace}
    return {
        "apiVersion": "serving.ballast.dev/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": metadata,
        "spec": spec,
    }


async def apply(client: httpx.AsyncClient, path: str, body: Manifest) -> None:
    """Server-side apply; tries again while a definition or a namespace is not served yet."""
    headers = {"content-type": "application/apply-patch+yaml"}
    for _ in range(400):
        answer = await client.patch(f"{path}?fieldManager=bench&force=true", content=json.dumps(body), headers=headers)
        if answer.status_code < 300:
            return
        if answer.status_code not in (403, 404, 429, 503):
            raise RuntimeError(answer.text)
        await asyncio.sleep(0.1)
    raise RuntimeError(answer.text)


def pool_path(number: int) -> str:
    """Of a ServingPool."""
    return f"{GROUP}/namespaces/{namespace_of(number)}/servingpools/chat-{number}"


async def fill(client: httpx.AsyncClient, pools: int) -> None:
    """CRDs, namespaces, what is referred to, and the ServingPools."""
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        name = definition["metadata"]["name"]
        await apply(client, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", definition)
    for namespace in sorted({namespace_of(number) for number in range(pools)}):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await apply(client, f"/api/v1/namespaces/{namespace}", body)
        await apply(client, f"{GROUP}/namespaces/{namespace}/schedulingpolicies/fair", policy(namespace))
    await apply(client, f"{GROUP}/hardwareprofiles/h20", PROFILE)
    for number in range(pools):
        await apply(client, pool_path(number), serving_pool(number, 64))


def kwok_stages() -> list[Path]:
    """How nodes and pods become ready, and pods go: KWOK's own files, of its module."""
    go = ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]
    found = subprocess.run(go, cwd=GO_ROOT / KWOK[0].folder, check=True, capture_output=True, text=True).stdout.strip()
    kinds = ("node/fast/node-initialize", "pod/fast/pod-ready", "pod/fast/pod-delete")
    return [Path(found) / "kustomize" / "stage" / f"{kind}.yaml" for kind in kinds]


@contextlib.contextmanager
def controllers(server: Server) -> Iterator[None]:
    """Those of Deployments and ReplicaSets, the scheduler, and KWOK for kubelets, while the block runs."""
    folder, config = server.folder, f"--kubeconfig={server.admin}"
    fast = ["--kube-api-qps=400", "--kube-api-burst=800", "--leader-elect=false"]
    ports = free_ports(3)
    manager = [str(bin_folder() / "kube-controller-manager"), config, *fast, f"--secure-port={ports[0]}"]
    manager += ["--controllers=deployment-controller,replicaset-controller"]
    scheduler = [str(bin_folder() / "kube-scheduler"), config, *fast, f"--secure-port={ports[1]}"]
    kwok = [str(bin_folder(KWOK) / "kwok"), config, "--manage-all-nodes=true", "--node-lease-duration-seconds=0"]
    kwok += [f"--config={file}" for file in kwok_stages()]
    # Pods' addresses are the machine's own, where nobody listens: the operator asks gateways there.
    kwok += [f"--server-address=127.0.0.1:{ports[2]}", "--cidr=127.128.0.0/9"]
    with (
        process(manager, folder / "manager.log"),
        process(scheduler, folder / "scheduler.log"),
        process(kwok, folder / "kwok.log"),
    ):
        yield


async def make_nodes(client: httpx.AsyncClient, count: int) -> None:
    """Nine in ten have 8 GPUs."""
    turns = asyncio.Semaphore(8)

    async def make(number: int) -> None:
        gpus = {"nvidia.com/gpu": "8"} if number % 10 else {}
        room = {"cpu": "128", "memory": "2Ti", "ephemeral-storage": "4Ti", "pods": "110", **gpus}
        labels = {"kubernetes.io/hostname": f"node-{number}", **({"hardware": "h20"} if gpus else {})}
        metadata = {"name": f"node-{number}", "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
        status = {"capacity": room, "allocatable": room}
        async with turns:
            answer = await client.post("/api/v1/nodes", json={"metadata": metadata, "status": status})
        answer.raise_for_status()

    await asyncio.gather(*map(make, range(count)))


async def play_nodes(client: httpx.AsyncClient) -> None:
    """What controllers and kubelets would do: Deployments have as many pods as they ask for, all ready."""
    seen: dict[str, str] = {}
    while True:
        with contextlib.suppress(httpx.HTTPError):
            answer = await client.get("/apis/apps/v1/deployments")
            for item in answer.json().get("items", ()):
                metadata = item["metadata"]
                known = f"{metadata['generation']}"
                if seen.get(metadata["uid"]) != known:
                    await _be_ready(client, item)
                    seen[metadata["uid"]] = known
        await asyncio.sleep(0.25)


async def _be_ready(client: httpx.AsyncClient, item: Manifest) -> None:
    metadata, count = item["metadata"], item["spec"]["replicas"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods"
    headers = {"content-type": "application/merge-patch+json"}
    for number in range(count):
        name = f"{metadata['name']}-{number}"
        labels = item["spec"]["template"]["metadata"]["labels"]
        containers = [{"name": "engine", "image": "none"}]
        pod = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": containers, "nodeName": "nowhere"}}
        made = await client.post(path, json=pod)
        if made.status_code == 201:
            ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
            await client.patch(f"{path}/{name}/status", content=json.dumps(ready), headers=headers)
    counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), count)
    status = {"status": {"observedGeneration": metadata["generation"], **counts}}
    where = f"/apis/apps/v1/namespaces/{metadata['namespace']}/deployments/{metadata['name']}/status"
    # An API server that begins refuses for a moment: then once more.
    (await client.patch(where, content=json.dumps(status), headers=headers)).raise_for_status()


def is_settled(pool: Manifest) -> bool:
    """Whether nothing is left to do, by its status."""
    status = pool.get("status") or {}
    reasons = {each["type"]: each["reason"] for each in status.get("conditions", ())}
    newest = status.get("observedGeneration") == pool["metadata"]["generation"]
    return newest and (reasons.get("Progressing"), reasons.get("Degraded")) == ("Complete", "AsExpected")


async def settled(client: httpx.AsyncClient) -> bool:
    """Whether all ServingPools are."""
    items = (await client.get(f"{GROUP}/servingpools")).json()["items"]
    return all(map(is_settled, items))


async def print_unsettled(client: httpx.AsyncClient) -> None:
    """How many are not settled, and what a few of them say."""
    items = (await client.get(f"{GROUP}/servingpools")).json()["items"]
    left = [item for item in items if not is_settled(item)]
    print(f"{len(left)} of {len(items)} are not settled, among them:")
    for item in left[:3]:
        said = [f"{each['type']} {each['reason']}: {each['message']}" for each in item["status"].get("conditions", ())]
        print(item["metadata"]["name"], *said, sep="\n  ", flush=True)
