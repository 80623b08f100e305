"""What the operator costs with many ServingPools, and whether it converges after kills; on a real API server.

    operator_scale.py [--pools 50] [--edits 40] [--baseline REF]     latency, API calls and memory (make operator-scale)
    operator_scale.py --pools 500 --nodes 1000                       the same with KWOK's nodes
    operator_scale.py --kills 100                                    kill -9 at random writes (make operator-kills)
    operator_scale.py --outages 10 --pools 20                        kill -9 of the API server, while specs are edited

etcd and kube-apiserver run without nodes and controllers: a loop of this program makes a pod for each replica and says
that it is ready. With `--nodes` Kubernetes' own controllers and scheduler make and place pods, and KWOK plays kubelets
(built once, two minutes). Requests are counted by the API server's audit log, by user and verb. With a baseline the
operator of that commit runs on the same objects right after.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ballast_cli.demo.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "e2e"))

from testbed.build import GO_ROOT, KWOK, bin_folder, build  # noqa: E402

GROUP = "/apis/serving.ballast.dev/v1alpha1"
WRITES = frozenset({"create", "update", "patch", "delete"})
FLEET = 10
"""ServingPools of a namespace."""
POLL_S = 0.02
LIMIT_S = 900.0
KILLED_S = 400.0
"""For one convergence: on a machine that others keep busy an operator takes long to start."""
Manifest = dict[str, Any]


# --- a real API server ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program while the block runs."""
    with log.open("ab") as out:
        started = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment})
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


class Server:
    """etcd and kube-apiserver in a folder; two users: this program and the operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.audit = folder / "audit.log"
        (self.port,) = free_ports(1)
        key = rsa.generate_private_key(65537, 2048)
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / "sa.key").write_bytes(private)
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        (folder / "sa.pub").write_bytes(public)
        (folder / "tokens.csv").write_text("bench,bench,1,system:masters\noperator,operator,2,system:masters\n")
        rules = [{"level": "Metadata", "users": ["operator"], "omitStages": ["RequestReceived", "ResponseStarted"]}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [*rules, {"level": "None"}]}
        (folder / "audit.yaml").write_text(yaml.safe_dump(policy))
        self.kubeconfig = self._kubeconfig("operator")
        self.admin = self._kubeconfig("bench")

    def _kubeconfig(self, user: str) -> Path:
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": user}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        written = self.folder / f"kubeconfig-{user}"
        written.write_text(yaml.safe_dump(config))
        return written

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of it while the block runs."""
        store, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        etcd = ["etcd", "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync"]
        etcd += ["--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", peer]
        etcd += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        flags = [
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certs'}",
            "--service-cluster-ip-range=10.0.0.0/16",
            f"--service-account-key-file={self.folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=AlwaysAllow",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            # No controller makes ServiceAccounts, and none takes the taint of new nodes away.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.audit}",
        ]
        self._api = [str(bin_folder() / "kube-apiserver"), *flags]
        auth = {"authorization": "Bearer bench"}
        url = f"https://127.0.0.1:{self.port}"
        with process(etcd, self.folder / "etcd.log"), contextlib.ExitStack() as self._processes:
            self.start()
            async with httpx.AsyncClient(base_url=url, headers=auth, verify=False, timeout=60.0) as client:
                await until(lambda: ok(client, "/readyz"), 120.0, "kube-apiserver is ready")
                yield client

    def start(self) -> None:
        """Start kube-apiserver, at first and after a kill."""
        self._running = self._processes.enter_context(process(self._api, self.folder / "api.log"))

    def kill(self) -> None:
        """SIGKILL to kube-apiserver."""
        self._running.kill()
        self._running.wait()

    def requests(self, since: int) -> list[Manifest]:
        """The operator's, as the audit log has them after so many bytes."""
        with self.audit.open("rb") as log:
            log.seek(since)
            lines = log.read().split(b"\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith(b"{")]

    def mark(self) -> int:
        """Bytes of the audit log."""
        return self.audit.stat().st_size if self.audit.exists() else 0


async def ok(client: httpx.AsyncClient, path: str) -> bool:
    """Whether a path answers 200."""
    try:
        return (await client.get(path)).status_code == 200
    except httpx.TransportError:
        return False


async def until(what: Any, limit_s: float, words: str, poll_s: float = POLL_S) -> None:
    """Wait for an async predicate."""
    end_s = time.monotonic() + limit_s
    while not await what():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{words}: not within {limit_s:g} s")
        await asyncio.sleep(poll_s)


# --- objects --------------------------------------------------------------------------------------------------------


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


# --- the operator ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def operator(server: Server, source: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The real one, with its sources of a checkout."""
    command = [sys.executable, "-m", "ballast_cli", "operator", "--gateway-image", "registry.test/ballast:1"]
    command += ["--health-port", str(free_ports(1)[0]), "--no-network-policies"]
    environment = {"KUBECONFIG": str(server.kubeconfig), "PYTHONPATH": str(source / "operator" / "src")}
    with process(command, server.folder / "operator.log", **environment) as started:
        yield started


def memory_mib(pid: int) -> float:
    """Resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Figures:
    """Of one operator."""

    name: str
    settle_s: float = 0.0
    edits_s: list[float] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    memory: float = 0.0
    settle_cpu_s: float = 0.0
    settle_calls: int = 0
    idle_cpu: float = 0.0
    """Share of a core while nothing changes."""

    def lines(self) -> str:
        """As people read them."""
        count, ordered = len(self.edits_s), sorted(self.edits_s)
        reads = sum(value for verb, value in self.calls.items() if verb not in WRITES | {"watch"})
        writes = sum(value for verb, value in self.calls.items() if verb in WRITES)
        p99 = ordered[min(count - 1, int(0.99 * count))]
        return (
            f"{self.name:>10}: start to settled {self.settle_s:6.1f} s; edit to applied p50 "
            f"{statistics.median(ordered):6.2f} s, p99 {p99:6.2f} s; per edit {self.calls['list'] / count:5.1f} lists, "
            f"{reads / count:5.1f} reads in all, {writes / count:4.1f} writes; {self.memory:5.0f} MiB; "
            f"{self.settle_cpu_s:.1f} s of processor and {self.settle_calls} requests to settle, then "
            f"{100 * self.idle_cpu:.1f} % of a core"
        )


async def measured(
    run: tuple[str, Path, int], server: Server, client: httpx.AsyncClient, args: argparse.Namespace
) -> Figures:
    """One operator on the objects as they are: its name, its sources, and the value of its first edit."""
    name, source, base = run
    found = Figures(name)
    with operator(server, source) as running:
        began_s, mark = time.monotonic(), server.mark()

        async def has_looked() -> bool:
            return running.poll() is not None or (server.mark() > mark and await settled(client))

        try:
            # Each look of ours lists them all: hundreds are looked at once in some seconds.
            await until(has_looked, args.limit, "all ServingPools are settled", max(POLL_S, args.pools / 100))
        except TimeoutError:
            await print_unsettled(client)
            raise
        assert running.poll() is None, (server.folder / "operator.log").read_text()[-3000:]
        found.settle_s = time.monotonic() - began_s
        found.settle_cpu_s, found.settle_calls = processor_s(running.pid), len(server.requests(mark))
        await asyncio.sleep(5.0)
        idle_s, used_s = time.monotonic(), processor_s(running.pid)
        await asyncio.sleep(args.idle)
        found.idle_cpu = (processor_s(running.pid) - used_s) / (time.monotonic() - idle_s)
        mark, chosen = server.mark(), random.Random(1)
        for edit in range(args.edits):
            number, batch = chosen.randrange(args.pools), base + edit
            began_s = time.monotonic()
            await apply(client, pool_path(number), serving_pool(number, batch))
            where = f"/apis/apps/v1/namespaces/{namespace_of(number)}/deployments/chat-{number}-decode"

            async def applied(where: str = where, batch: int = batch) -> bool:
                return f'"{batch}"' in (await client.get(where)).text

            await until(applied, 120.0, f"edit {edit} is applied")
            found.edits_s.append(time.monotonic() - began_s)
        await until(lambda: settled(client), args.limit, "all edits are settled", max(POLL_S, args.pools / 100))
        found.calls = Counter(each["verb"] for each in server.requests(mark))
        found.memory = memory_mib(running.pid)
    return found


@contextlib.contextmanager
def checkouts(baseline: str) -> Iterator[list[tuple[str, Path]]]:
    """This one, and one of the baseline where there is one, each with its name."""
    found = [("this", ROOT)]
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        if not baseline:
            yield found
            return
        other = Path(folder) / "baseline"
        subprocess.run([*git, "add", "--quiet", "--detach", str(other), baseline], check=True)
        try:
            yield [*found, (baseline[:10], other)]
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=False)


async def scale(args: argparse.Namespace, sources: list[tuple[str, Path]]) -> None:
    """Print what the operator costs, beside that of the baseline."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        async with server.running() as client:
            with contextlib.ExitStack() as stack:
                await fill(client, args.pools)
                nodes = None
                if args.nodes:
                    build(lambda line: print(line, flush=True), KWOK)
                    await make_nodes(client, args.nodes)
                    stack.enter_context(controllers(server))
                else:
                    nodes = asyncio.create_task(play_nodes(client))
                kubelets = f" on {args.nodes} KWOK nodes" if args.nodes else ""
                print(f"{args.pools} ServingPools{kubelets}, {args.edits} edits one after the other", flush=True)
                for number, (name, source) in enumerate(sources):
                    figures = await measured((name, source, 1000 * (number + 1)), server, client, args)
                    print(figures.lines(), flush=True)
                if nodes is not None:
                    nodes.cancel()


# --- kills ----------------------------------------------------------------------------------------------------------


async def state(client: httpx.AsyncClient) -> set[str]:
    """Names of all objects of the ServingPool, and what its Deployments ask for."""
    found = set()
    for api, plural in (("/apis/apps/v1", "deployments"), ("/api/v1", "services"), ("/api/v1", "configmaps"),
                        ("/apis/policy/v1", "poddisruptionbudgets"), ("/apis/rbac.authorization.k8s.io/v1", "roles"),
                        ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"), ("/api/v1", "secrets"),
                        ("/apis/coordination.k8s.io/v1", "leases"), ("/api/v1", "serviceaccounts")):  # fmt: skip
        selector = "serving.ballast.dev%2Fserving-pool%3Dchat-0"
        items = (await client.get(f"{api}/namespaces/{namespace_of(0)}/{plural}?labelSelector={selector}")).json()[
            "items"
        ]
        for item in items:
            asked = {key: item.get(key) for key in ("spec", "data", "rules") if plural not in ("secrets", "leases")}
            for volatile in ("clusterIP", "clusterIPs"):
                (asked.get("spec") or {}).pop(volatile, None)
            found.add(f"{plural}/{item['metadata']['name']}: {json.dumps(asked, sort_keys=True)}")
    return found


async def explain(server: Server, client: httpx.AsyncClient, expected: set[str]) -> None:
    """Print what is there in place of what should be, the status, and the end of the operator's log."""
    there = await state(client)
    for word, lines in (("missing", expected - there), ("beyond", there - expected)):
        for line in sorted(lines):
            print(f"{word}: {line[:2000]}")
    print(json.dumps((await client.get(pool_path(0))).json().get("status"), indent=1))
    print((server.folder / "operator.log").read_text()[-6000:], flush=True)


async def kills(args: argparse.Namespace) -> None:
    """Edit, kill at a random write, start again; what is there must be what the last spec asks for."""
    chosen = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        async with server.running() as client:
            await fill(client, 1)
            nodes = asyncio.create_task(play_nodes(client))
            expected: dict[str, set[str]] = {}
            shapes = [(decode, count) for decode in ("decode", "other") for count in (1, 3)]
            done, stack = 0, contextlib.ExitStack()
            running = stack.enter_context(operator(server, ROOT))
            await until(lambda: settled(client), 120.0, "settled")
            for decode, count in shapes:  # undisturbed, for comparison
                await apply(client, pool_path(0), serving_pool(0, 64, decode=decode, replicas=count))
                await until(lambda: settled(client), 120.0, f"settled as {decode} {count}")
                expected[f"{decode} {count}"] = await state(client)
            last = shapes[-1]
            while done < args.kills:
                last = chosen.choice([shape for shape in shapes if shape != last])
                kill_at, mark = chosen.randint(1, 9), server.mark()
                await apply(client, pool_path(0), serving_pool(0, 64, decode=last[0], replicas=last[1]))
                while running.poll() is None:
                    written = sum(each["verb"] in WRITES for each in server.requests(mark))
                    if written >= kill_at:
                        running.send_signal(signal.SIGKILL)
                        running.wait()
                        done += 1
                    elif await settled(client):
                        break
                    await asyncio.sleep(0.002)
                if running.poll() is not None:
                    stack.close()
                    running = stack.enter_context(operator(server, ROOT))
                key = f"{last[0]} {last[1]}"

                async def converged(key: str = key) -> bool:
                    return await settled(client) and await state(client) == expected[key]

                try:
                    await until(converged, KILLED_S, f"converged to {key} after kill {done}")
                except TimeoutError:
                    await explain(server, client, expected[key])
                    raise
                if done % 10 == 0:
                    print(f"{done} kills, converged each time", flush=True)
            stack.close()
            nodes.cancel()
    print(f"killed {done} times at random writes (seed {args.seed}); converged each time")


# --- an API server that is killed -----------------------------------------------------------------------------------


class Editor:
    """Edits ServingPools and deletes what the operator made of them, without a pause; knows what was acknowledged."""

    def __init__(self, client: httpx.AsyncClient, pools: int, chosen: random.Random) -> None:
        self._client = client
        self._chosen = chosen
        self._batches = iter(range(1000, 1_000_000))
        self.possible: list[list[tuple[int, int]]] = [[(64, 2)] for _ in range(pools)]
        """Batch and replicas of each spec: what was last acknowledged, and after it what got no answer."""
        self.edits = self.deletions = self.unanswered = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(0.03)
            number = self._chosen.randrange(len(self.possible))
            try:
                await (self._delete(number) if self._chosen.random() < 0.25 else self._edit(number))
            except httpx.TransportError:
                self.unanswered += 1

    async def _edit(self, number: int) -> None:
        wanted = next(self._batches), self._chosen.randint(1, 4)
        self.possible[number].append(wanted)
        body = serving_pool(number, wanted[0], replicas=wanted[1])
        headers = {"content-type": "application/apply-patch+yaml"}
        path = f"{pool_path(number)}?fieldManager=bench&force=true"
        answer = await self._client.patch(path, content=json.dumps(body), headers=headers)
        if answer.status_code == 200:
            self.possible[number] = [wanted]
            self.edits += 1
        else:
            self.unanswered += 1

    async def _delete(self, number: int) -> None:
        kinds = [("/api/v1", "services", "gateway"), ("/api/v1", "configmaps", "gateway")]
        kinds.append(("/apis/apps/v1", "deployments", "decode"))
        api, plural, part = self._chosen.choice(kinds)
        what = f"{api}/namespaces/{namespace_of(number)}/{plural}/chat-{number}-{part}"
        answer = await self._client.delete(what)
        self.deletions += answer.status_code == 200


async def carried_out(client: httpx.AsyncClient, number: int) -> bool:
    """Whether the ServingPool is settled, all its objects are there, and its engines are those of its spec."""
    pool = (await client.get(pool_path(number))).json()
    batch, replicas = spec_of(pool)
    space = f"namespaces/{namespace_of(number)}"
    deployment = (await client.get(f"/apis/apps/v1/{space}/deployments/chat-{number}-decode")).json()
    if not is_settled(pool) or deployment.get("spec", {}).get("replicas") != replicas:
        return False
    others = (f"/api/v1/{space}/services/chat-{number}-gateway", f"/api/v1/{space}/configmaps/chat-{number}-gateway")
    there = [await ok(client, other) for other in others]
    return f'"{batch}"' in json.dumps(deployment["spec"]) and all(there)


def spec_of(pool: Manifest) -> tuple[int, int]:
    """What edits change: batch, and replicas of the decode pool."""
    return int(pool["spec"]["engine"]["args"][1]), int(pool["spec"]["pools"][1]["replicas"])


async def outages(args: argparse.Namespace) -> None:
    """Kill kube-apiserver again and again while specs are edited; each ServingPool must become what its last one says,
    and the operator must live."""
    chosen = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        async with server.running() as client:
            await fill(client, args.pools)
            nodes = asyncio.create_task(play_nodes(client))
            editor = Editor(client, args.pools, chosen)
            took_s = []
            with operator(server, ROOT) as running:
                await until(lambda: settled(client), args.limit, "all are settled")
                for outage in range(args.outages):
                    editing = asyncio.create_task(editor.run())
                    await asyncio.sleep(chosen.uniform(0.5, 2.0))
                    server.kill()
                    await asyncio.sleep(chosen.choice((0.0, 2.0, 12.0)))
                    server.start()
                    await until(lambda: ok(client, "/readyz"), 120.0, "kube-apiserver is back")
                    await asyncio.sleep(0.5)
                    editing.cancel()
                    await asyncio.gather(editing, return_exceptions=True)
                    began_s = time.monotonic()
                    for number, possible in enumerate(editor.possible):
                        spec = spec_of((await client.get(pool_path(number))).json())
                        assert spec in possible, f"chat-{number} is {spec}, acknowledged was {possible}"
                        editor.possible[number] = [spec]
                    try:
                        for number in range(args.pools):
                            await until(lambda n=number: carried_out(client, n), args.limit, f"chat-{number} follows")
                    except TimeoutError:
                        await print_unsettled(client)
                        print((server.folder / "operator.log").read_text()[-6000:], flush=True)
                        raise
                    took_s.append(time.monotonic() - began_s)
                    assert running.poll() is None, (server.folder / "operator.log").read_text()[-3000:]
                    print(f"outage {outage + 1}: all follow {took_s[-1]:.1f} s after the last edit", flush=True)
            assert "Traceback" not in (log := (server.folder / "operator.log").read_text()), log[-6000:]
            nodes.cancel()
    print(
        f"killed it {args.outages} times with {args.pools} ServingPools: {editor.edits} edits acknowledged, "
        f"{editor.deletions} objects deleted, {editor.unanswered} calls without an answer; no edit lost; all as their "
        f"last specs say {statistics.median(took_s):.1f} s after the last edit in the median, {max(took_s):.1f} s at "
        "most; the operator lived"
    )


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, default=50)
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=0, help="nodes that KWOK plays; 0: neither nodes nor controllers")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to measure in which nothing changes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds within which all must be settled")
    parser.add_argument("--baseline", default="", help="a commit to run right after, on the same objects")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--outages", type=int, default=0, help="times to kill the API server, while specs are edited")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.kills:
        asyncio.run(kills(args))
        return
    if args.outages:
        asyncio.run(outages(args))
        return
    with checkouts(args.baseline) as sources:
        asyncio.run(scale(args, sources))


if __name__ == "__main__":
    main()
