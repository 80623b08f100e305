"""etcd and kube-apiserver as processes of this machine; the audit log counts requests, by user and verb."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ballast_cli.demo.ports import free_ports
from testbed.build import bin_folder

POLL_S = 0.02
Manifest = dict[str, Any]


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
