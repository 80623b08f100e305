"""Build the cluster's programs once, from pinned Go modules, into a cache folder.

The folder's name is a hash of everything that decides the result (go.mod, go.sum, our own sources, flags), so a changed
pin builds anew and an unchanged one is never built twice.
"""

import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from testbed.errors import TestbedError
from testbed.spec import cache_root

GO_ROOT = Path(__file__).parent / "go"
KUBERNETES_VERSION = "v1.36.3"
_MINOR = KUBERNETES_VERSION.split(".")[1]
_KUBERNETES_LDFLAGS = (
    f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
    f" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor={_MINOR}"
    f" -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}"
)


@dataclasses.dataclass(frozen=True, slots=True)
class GoModule:
    """A folder under `go/` with its own pins, and the packages to build there; the last element names a program."""

    folder: str
    packages: tuple[str, ...]
    ldflags: str = "-s -w"

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(self.folder if package == "." else package.rsplit("/", 1)[-1] for package in self.packages)


# Envoy Gateway's controller-runtime needs a newer client-go than Kubernetes 1.36 is made of, kube-router's controller
# an older one: hence their own modules.
MODULES = (
    GoModule("pause", (".",)),
    GoModule(
        "kubernetes",
        (
            *(
                f"k8s.io/kubernetes/cmd/{name}"
                for name in (
                    "kube-apiserver",
                    "kube-controller-manager",
                    "kube-scheduler",
                    "kubelet",
                    "kube-proxy",
                    "kubectl",
                )
            ),
            "github.com/coredns/coredns",
            "helm.sh/helm/v4/cmd/helm",
        ),
        _KUBERNETES_LDFLAGS,
    ),
    GoModule("envoy-gateway", ("github.com/envoyproxy/gateway/cmd/envoy-gateway",)),
    GoModule("network-policies", (".",)),
)
KWOK = (GoModule("kwok", ("sigs.k8s.io/kwok/cmd/kwok",)),)
"""Nodes and pods without kubelets, for benchmarks only."""
LEADER_WORKER_SET = (GoModule("leader-worker-set", ("sigs.k8s.io/lws/cmd",)),)
"""Its controller, whose program is called `cmd`. Apart, as its Kubernetes libraries are older."""


def programs(modules: Iterable[GoModule] = MODULES) -> list[str]:
    return [name for module in modules for name in module.programs]


def content_hash(go_root: Path = GO_ROOT, modules: Iterable[GoModule] = MODULES) -> str:
    """16 hex digits over module files, our Go sources, packages and flags."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(repr(module).encode())
        folder = go_root / module.folder
        files = sorted(p for p in folder.rglob("*") if p.name in {"go.mod", "go.sum"} or p.suffix == ".go")
        for file in files:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(go_root)}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def bin_folder(modules: Iterable[GoModule] = MODULES) -> Path:
    return cache_root() / content_hash(GO_ROOT, modules) / "bin"


def missing(folder: Path, modules: Iterable[GoModule] = MODULES) -> list[str]:
    """Programs that are not in `folder` yet."""
    return [name for name in programs(modules) if not os.access(folder / name, os.X_OK)]


def require_built(modules: Sequence[GoModule] = MODULES) -> Path:
    """The folder with every program; raises TestbedError when some are missing."""
    folder = bin_folder(modules)
    absent = missing(folder, modules)
    if absent:
        raise TestbedError(f"not built yet: {', '.join(absent)}. Run `make testbed-build` (8-12 minutes, once)")
    return folder


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise TestbedError(
            "Go 1.26.7 or later is needed to build the cluster's programs; install it or use `make e2e-kind`"
        )
    return go


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}


class _Progress:
    """Counts compiled packages; on a terminal one line that changes, elsewhere a line each 20 s."""

    def __init__(self, label: str, say: Callable[[str], None]) -> None:
        self._label, self._say = label, say
        self._start = time.monotonic()
        self._last = self._start
        self._count = 0
        self._live = sys.stderr.isatty()

    def package(self) -> None:
        self._count += 1
        now = time.monotonic()
        if now - self._last < (0.2 if self._live else 20.0):
            return
        self._last = now
        text = f"    {self._label}: {self._count} packages compiled, {now - self._start:.0f} s"
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        else:
            self._say(text)

    def end(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
        elapsed = time.monotonic() - self._start
        self._say(f"    {self._label}: done, {self._count} packages compiled in {elapsed:.0f} s")


def _build_module(module: GoModule, folder: Path, say: Callable[[str], None]) -> None:
    go = _go()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # nice: other people's work on this machine goes first.
        argv = [
            "nice",
            "-n",
            "10",
            go,
            "build",
            "-v",
            "-trimpath",
            "-ldflags",
            module.ldflags,
            "-o",
            f"{scratch}/",
            *module.packages,
        ]
        progress = _Progress(module.folder, say)
        errors: list[str] = []
        with subprocess.Popen(
            argv,
            cwd=GO_ROOT / module.folder,
            env=_environment(),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                errors.append(line.rstrip())
                progress.package()
        if process.returncode:
            raise TestbedError(f"go build failed in go/{module.folder}:\n" + "\n".join(errors[-20:]))
        progress.end()
        for name in module.programs:
            (Path(scratch) / name).rename(folder / name)


def build(say: Callable[[str], None], modules: Sequence[GoModule] = MODULES) -> Path:
    """Build what is missing and return the folder. Raises TestbedError when Go is missing or a build fails."""
    folder = bin_folder(modules)
    absent = set(missing(folder, modules))
    if not absent:
        say(f"==> programs are built: {folder}")
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    say(f"==> building {len(absent)} programs into {folder} (8-12 minutes on two cores with an empty Go cache, once)")
    for module in modules:
        if absent & set(module.programs):
            _build_module(module, folder, say)
    return folder
