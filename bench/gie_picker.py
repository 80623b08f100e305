"""GIE's own endpoint picker, beside which ours is measured: built from its Go module, in front of a bare API server.

The picker learns its pods from the Kubernetes API alone. etcd and kube-apiserver suffice for that, without nodes: pods
are made there and said to be ready at addresses of loopback. Needs Go, etcd (Debian's `etcd-server`), and the
kube-apiserver of `make testbed-build`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from grpc_health.v1 import health_pb2

from ballast_cli.demo.ports import free_port

MODULE: Final = "sigs.k8s.io/gateway-api-inference-extension"
VERSION: Final = "v1.5.0"
"""The last with a whole picker; its successor is llm-d's router, whose module is not served everywhere."""
BINARY: Final = Path(__file__).parents[1] / ".cache/gie" / f"epp-{VERSION}"
_SOURCE: Final = BINARY.parent / "module"
TOKEN: Final = "bench-token"
POOL: Final = "pool"
_GO_MOD: Final = f"module gie\n\ngo 1.25\n\nrequire {MODULE} {VERSION}\n"
_IMPORT: Final = f'//go:build tools\n\npackage tools\n\nimport _ "{MODULE}/cmd/epp"\n'


class Missing(Exception):
    """Something that is needed is not here, and how to get it."""


@dataclass(frozen=True, slots=True)
class GiePicker:
    """One that runs."""

    port: int
    pid: int


def build() -> Path:
    """The picker's program, built once (some minutes). Raises `Missing`."""
    if BINARY.exists():
        return BINARY
    go = shutil.which("go")
    if go is None:
        raise Missing("GIE's picker needs Go to be built")
    folder = _SOURCE
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "go.mod").write_text(_GO_MOD)
    (folder / "tools.go").write_text(_IMPORT)
    print(f"building GIE's picker {VERSION} into {BINARY.parent.name} (some minutes)", file=sys.stderr)
    made = BINARY.parent / "epp.new"
    subprocess.run([go, "build", "-mod=mod", "-o", str(made), f"{MODULE}/cmd/epp"], cwd=folder, check=True)
    made.rename(BINARY)
    return BINARY


def _definitions() -> Iterator[dict[str, Any]]:
    found = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", MODULE],
        cwd=_SOURCE,
        env={**os.environ, "GOFLAGS": "-mod=mod"},
        check=True,
        capture_output=True,
        text=True,
    )
    for file in sorted((Path(found.stdout.strip()) / "config/crd/bases").glob("*.yaml")):
        yield yaml.safe_load(file.read_text())


def _program(name: str, *folders: Path, hint: str) -> str:
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise Missing(f"no {name}: {hint}")
    return found


@contextmanager
def _process(command: list[str], log: Path, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _keys(folder: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.key").write_bytes(private)
    (folder / "sa.pub").write_bytes(public)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")


@asynccontextmanager
async def _api_server(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
    from testbed.build import bin_folder

    etcd = _program("etcd", hint="install etcd-server")
    apiserver = _program("kube-apiserver", bin_folder(), hint="run `make testbed-build`")
    store, peer, port = free_port(), free_port(), free_port()
    _keys(folder)
    urls = {"client": f"http://127.0.0.1:{store}", "peer": f"http://127.0.0.1:{peer}"}
    etcd_flags = [
        "--data-dir",
        str(folder / "etcd"),
        "--unsafe-no-fsync",
        "--initial-cluster",
        f"default={urls['peer']}",
    ]
    for kind, url in urls.items():
        advertise = "--advertise-client-urls" if kind == "client" else "--initial-advertise-peer-urls"
        etcd_flags += [f"--listen-{kind}-urls", url, advertise, url]
    flags = [
        f"--etcd-servers={urls['client']}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certs'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--service-account-key-file={folder / 'sa.pub'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=AlwaysAllow",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--disable-admission-plugins=ServiceAccount",
    ]
    with _process([etcd, *etcd_flags], folder / "etcd.log"), _process([apiserver, *flags], folder / "api.log"):
        auth = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", headers=auth, verify=False) as api:
            await _until_ready(api)
            yield api


async def _until_ready(api: httpx.AsyncClient) -> None:
    async with asyncio.timeout(90):
        while True:
            try:
                if (await api.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.3)


async def _make(api: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    async with asyncio.timeout(30):
        while True:
            answer = await api.post(path, json=body)
            if answer.status_code in {201, 409}:
                return
            if answer.status_code not in {403, 404}:  # a definition that is not served yet, a namespace to come
                answer.raise_for_status()
            await asyncio.sleep(0.2)


async def _fill(api: httpx.AsyncClient, addresses: Iterable[str], port: int) -> None:
    for definition in _definitions():
        await _make(api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    group = "inference.networking.k8s.io"
    await _make(
        api,
        f"/apis/{group}/v1/namespaces/default/inferencepools",
        {
            "apiVersion": f"{group}/v1",
            "kind": "InferencePool",
            "metadata": {"name": POOL},
            "spec": {
                "selector": {"matchLabels": {"app": "engine"}},
                "targetPorts": [{"number": port}],
                "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
            },
        },
    )
    for number, address in enumerate(addresses):
        pod = {
            "metadata": {"name": f"e{number}", "labels": {"app": "engine"}},
            "spec": {
                "automountServiceAccountToken": False,
                "nodeName": "nowhere",
                "containers": [{"name": "engine", "image": "none"}],
            },
        }
        await _make(api, "/api/v1/namespaces/default/pods", pod)
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        path = f"/api/v1/namespaces/default/pods/e{number}/status"
        headers = {"content-type": "application/merge-patch+json"}
        (await api.patch(path, json={"status": status}, headers=headers)).raise_for_status()


@asynccontextmanager
async def gie_pickers(
    addresses: Sequence[str], port: int, intervals_ms: Sequence[int], folder: Path
) -> AsyncIterator[list[GiePicker]]:
    """GIE's picker, one for each scrape interval, over engines at `port` of these addresses. Raises `Missing`.

    `folder`: an empty one, for logs and data.
    """
    program = build()
    async with _api_server(folder) as api:
        await _fill(api, addresses, port)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": str(api.base_url), "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        running: list[GiePicker] = []
        processes: list[Any] = []
        try:
            for interval_ms in intervals_ms:
                ports = [free_port() for _ in range(3)]
                flags = [
                    *("--pool-name", POOL, "--pool-namespace", "default", "--secure-serving=false"),
                    *("--grpc-port", str(ports[0]), "--grpc-health-port", str(ports[1])),
                    *("--metrics-port", str(ports[2]), "--metrics-endpoint-auth=false", "--tracing=false"),
                    *("--refresh-metrics-interval", f"{interval_ms}ms"),
                ]
                log = folder / f"epp-{interval_ms}.log"
                environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
                process = _process([str(program), *flags], log, env=environment)
                pid = process.__enter__().pid
                processes.append(process)
                await _until_serving(ports[1], log)
                running.append(GiePicker(ports[0], pid))
            yield running
        finally:
            for process in reversed(processes):
                process.__exit__(None, None, None)


async def _until_serving(port: int, log: Path) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for _ in range(300):
            try:
                answer = await check(
                    health_pb2.HealthCheckRequest(service="envoy.service.ext_proc.v3.ExternalProcessor")
                )
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(0.1)
    said = await asyncio.to_thread(log.read_text)
    raise Missing(f"GIE's picker does not serve:\n{said[-2000:]}")
