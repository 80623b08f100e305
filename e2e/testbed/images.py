"""Images for the nodes: built from the project's own Dockerfile by buildah, without Docker and without network.

The base is a Debian root from debootstrap, made once. Archives are kept by the hash of what they are made of, so an
unchanged image is not built again, and a changed line of Python rebuilds one small layer.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed import build, commands, context, lifecycle, oci
from testbed.context import REPOSITORY, Say, digest
from testbed.errors import TestbedError
from testbed.overlay import supports_overlay
from testbed.packages import find_program
from testbed.spec import ClusterPaths, cache_root

BALLAST_IMAGE = "localhost/ballast:dev"
NEXT_BALLAST_IMAGE = "localhost/ballast:next"
"""The same image by another name, on every node: what a release or an engine is upgraded to."""
ENVOY_GATEWAY_IMAGE = "localhost/envoy-gateway:1"
ENVOY_IMAGE = "localhost/envoy:1"
LEADER_WORKER_SET_IMAGE = "localhost/leader-worker-set:1"

_SUITE = "bookworm"
_BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates", "libnuma1")
"""libnuma1: the real vLLM of e2e/test_real_vllm.py loads it."""
_DOCKERFILES = Path(__file__).parent / "images"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One build at a time on this machine; others wait."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "images.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclasses.dataclass(frozen=True, slots=True)
class Buildah:
    """Buildah with its storage in our cache; each call in a mount namespace of its own, so that no mount stays."""

    storage: Path
    driver: str

    @classmethod
    def open(cls) -> "Buildah":
        storage = cache_root() / "buildah"
        storage.mkdir(parents=True, exist_ok=True)
        return cls(storage, "overlay" if supports_overlay(storage) else "vfs")

    def call(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        argv = [find_program("unshare"), "--mount", "--propagation", "private", "--", find_program("buildah")]
        options = ["--root", str(self.storage / "root"), "--runroot", str(self.storage / "run")]
        command = [*argv, *options, "--storage-driver", self.driver, *arguments]
        environment = {**os.environ, "TMPDIR": str(self.storage)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if check and result.returncode:
            raise TestbedError(f"buildah {arguments[0]} failed:\n{(result.stdout + result.stderr).strip()[-3000:]}")
        return result

    def has(self, image: str) -> bool:
        return self.call("inspect", "--type", "image", image, check=False).returncode == 0

    def build(
        self, image: str, dockerfile: Path, folder: Path, arguments: Mapping[str, str], *, cached: bool = True
    ) -> None:
        """Build, with cached layers unless all of it is to be made anew: labels of other arguments would be taken for
        the same. chroot isolation needs neither a runtime nor cgroups."""
        values = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
        options = ["--isolation", "chroot", "--network", "host", "--pull=false", "--quiet"]
        layers = "--layers" if cached else "--no-cache"
        self.call("bud", *options, layers, *values, "--tag", image, "--file", str(dockerfile), str(folder))

    def export(self, image: str, archive: Path) -> None:
        """Write the image as an OCI archive."""
        scratch = archive.with_suffix(".partial")
        scratch.unlink(missing_ok=True)
        self.call("push", "--quiet", image, f"oci-archive:{scratch}:{image}")
        scratch.replace(archive)

    def prune(self) -> None:
        """Drop layers that no tagged image needs any more."""
        self.call("rmi", "--prune", check=False)


def _mirror() -> str:
    """The Debian archive that this machine's own apt uses, so that a proxy or mirror is respected."""
    result = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in result.stdout.splitlines():
        uri, _, release = line.partition(" ")
        if release == _SUITE:
            return uri
    return "http://deb.debian.org/debian"


def _ensure_base(buildah: Buildah, say: Say) -> str:
    dockerfile = _DOCKERFILES / "base.Dockerfile"
    image = f"localhost/ballast-base:{digest(dockerfile.read_bytes(), _SUITE.encode(), repr(_BASE_PACKAGES).encode())}"
    if buildah.has(image):
        return image
    say("==> making the base image with debootstrap (about a minute, once)")
    with tempfile.TemporaryDirectory(dir=cache_root()) as scratch:
        root, folder = Path(scratch) / "root", Path(scratch) / "context"
        folder.mkdir()
        include = f"--include={','.join(_BASE_PACKAGES)}"
        argv = [find_program("debootstrap"), "--variant=minbase", include, _SUITE, str(root), _mirror()]
        # debootstrap mounts /proc in the new root: in a mount namespace of its own it cannot leave it behind.
        unshare = [find_program("unshare"), "--mount", "--propagation", "private", "--"]
        result = subprocess.run([*unshare, *argv], capture_output=True, text=True, check=False)
        if result.returncode:
            raise TestbedError(f"debootstrap failed:\n{(result.stdout + result.stderr).strip()[-2000:]}")
        for useless in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / useless, ignore_errors=True)
        tar = ["tar", "--numeric-owner", "--one-file-system", "-C", str(root), "-cf", str(folder / "root.tar"), "."]
        subprocess.run(tar, check=True)
        buildah.build(image, dockerfile, folder, {})
    return image


def _archive(stem: str, key: str) -> Path:
    return cache_root() / "images" / f"{stem}-{key}.tar"


def _keep_only(archive: Path, stem: str) -> None:
    for old in archive.parent.glob(f"{stem}-????????????????.tar"):
        if old != archive:
            old.unlink()


def _ballast(buildah: Buildah, say: Say) -> Path:
    dockerfile = REPOSITORY / "Dockerfile"
    prepared = context.prepare(say)
    base = _ensure_base(buildah, say)
    hashes = {"DEPENDENCIES": prepared.dependencies_hash, "CODE": prepared.code_hash}
    archive = _archive("ballast", digest(dockerfile.read_bytes(), base.encode(), repr(hashes).encode()))
    if not archive.exists():
        say(f"==> building {BALLAST_IMAGE}")
        buildah.build(BALLAST_IMAGE, dockerfile, prepared.folder, {"BASE": base, **hashes})
        buildah.export(BALLAST_IMAGE, archive)
        _keep_only(archive, "ballast")
        buildah.prune()
    return archive


def _envoy_program() -> Path:
    """The Envoy that `make envoy` installs: the package keeps the program itself below its Python wrapper."""
    found = sorted((REPOSITORY / ".tools" / "envoy").glob("lib/python*/site-packages/envoy/_bin/envoy"))
    if not found:
        raise TestbedError("Envoy is not installed; run `make envoy`")
    return found[-1]


def _envoy(buildah: Buildah, say: Say) -> Path:
    dockerfile = _DOCKERFILES / "envoy.Dockerfile"
    program = _envoy_program()
    base = _ensure_base(buildah, say)
    stat = program.stat()
    version = f"{stat.st_size} {stat.st_mtime_ns}"  # a hash of 100 MB each time would cost more than it tells
    archive = _archive("envoy", digest(dockerfile.read_bytes(), base.encode(), version.encode()))
    if not archive.exists():
        say(f"==> building {ENVOY_IMAGE}")
        with tempfile.TemporaryDirectory(dir=cache_root()) as scratch:
            shutil.copy(program, Path(scratch) / "envoy")
            buildah.build(ENVOY_IMAGE, dockerfile, Path(scratch), {"BASE": base})
        buildah.export(ENVOY_IMAGE, archive)
        _keep_only(archive, "envoy")
    return archive


def _envoy_gateway(_: Buildah, say: Say) -> Path:
    archive = _archive("envoy-gateway", build.content_hash())
    if not archive.exists():
        say(f"==> building {ENVOY_GATEWAY_IMAGE}")
        program = (build.require_built() / "envoy-gateway").read_bytes()
        folders = [oci.LayerFile(path, 0o755) for path in ("usr", "usr/local", "usr/local/bin", "var", "var/lib")]
        writable = [oci.LayerFile(path, 0o1777) for path in ("tmp", "var/lib/eg")]
        files = [*folders, *writable, oci.LayerFile("usr/local/bin/envoy-gateway", 0o755, program)]
        oci.write_archive(archive, ENVOY_GATEWAY_IMAGE, files, ["envoy-gateway"])
        _keep_only(archive, "envoy-gateway")
    return archive


def _leader_worker_set(_: Buildah, say: Say) -> Path:
    archive = _archive("leader-worker-set", build.content_hash(modules=build.LEADER_WORKER_SET))
    if not archive.exists():
        say(f"==> building {LEADER_WORKER_SET_IMAGE}")
        program = (build.require_built(build.LEADER_WORKER_SET) / "cmd").read_bytes()
        files = [oci.LayerFile("tmp", 0o1777), oci.LayerFile("manager", 0o755, program)]  # where its chart expects it
        oci.write_archive(archive, LEADER_WORKER_SET_IMAGE, files, ["/manager"])
        _keep_only(archive, "leader-worker-set")
    return archive


_BUILDERS: Mapping[str, Callable[[Buildah, Say], Path]] = {
    "ballast": _ballast,
    "envoy": _envoy,
    "envoy-gateway": _envoy_gateway,
    "leader-worker-set": _leader_worker_set,
}
IMAGES = {
    "ballast": BALLAST_IMAGE,
    "envoy": ENVOY_IMAGE,
    "envoy-gateway": ENVOY_GATEWAY_IMAGE,
    "leader-worker-set": LEADER_WORKER_SET_IMAGE,
}


def build_archives(names: list[str], say: Say) -> dict[str, Path]:
    """OCI archives by short name, built where out of date. Raises TestbedError."""
    unknown = [name for name in names if name not in _BUILDERS]
    if unknown:
        raise TestbedError(f"images: {', '.join(unknown)} unknown; choose from {', '.join(_BUILDERS)}")
    with _locked():
        (cache_root() / "images").mkdir(exist_ok=True)
        buildah = Buildah.open()
        return {name: _BUILDERS[name](buildah, say) for name in names}


def try_release(
    image: str, arguments: Mapping[str, str], command: Sequence[str], archive: Path, say: Say
) -> tuple[str, dict[str, str]]:
    """Build the project's image under this name with these build arguments, run a command in it and write it out.

    Returns what the command said and the image's labels; the image itself is dropped. Raises TestbedError.
    """
    with _locked():
        buildah = Buildah.open()
        prepared, base = context.prepare(say), _ensure_base(buildah, say)
        hashes = {"DEPENDENCIES": prepared.dependencies_hash, "CODE": prepared.code_hash}
        given = {"BASE": base, **hashes, **arguments}
        buildah.build(image, REPOSITORY / "Dockerfile", prepared.folder, given, cached=False)
        container = buildah.call("from", "--pull=false", image).stdout.strip()
        try:
            said = buildah.call("run", "--isolation", "chroot", container, "--", *command).stdout
        finally:
            buildah.call("rm", container)
        labels = json.loads(buildah.call("inspect", "--type", "image", image).stdout)["OCIv1"]["config"]["Labels"]
        buildah.export(image, archive)
        buildah.call("rmi", image)
        return said, labels


def load(cluster: str, archives: Mapping[str, Path], say: Say) -> None:
    """Import archives into every node of a running cluster, skipping what a node has. Raises TestbedError."""
    lifecycle.enter(cluster)  # says so when it is not up
    paths = ClusterPaths.of(cluster)
    nodes = [node.name for node in lifecycle.spec_of(cluster).nodes]
    with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
        loaded = [pool.submit(_load_node, paths, node, archives) for node in nodes]
        counts = [future.result() for future in loaded]
    say(f"==> {sum(counts)} images loaded into {len(nodes)} nodes; the others were there")


def _load_node(paths: ClusterPaths, node: str, archives: Mapping[str, Path]) -> int:
    count = 0
    for name, archive in archives.items():
        mark = paths.node(node) / f"{name}.loaded"
        if mark.exists() and mark.read_text() == archive.name:
            continue
        # Every node will run ballast; the others are unpacked where a pod first needs them.
        later = [] if name == "ballast" else ["--no-unpack"]
        argv = commands.ctr(paths.containerd_socket(node), "images", "import", *later, str(archive))
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode:
            raise TestbedError(f"loading {name} into {node} failed: {result.stderr.strip()}")
        if name == "ballast":
            tag = commands.ctr(paths.containerd_socket(node), "images", "tag", "--force", BALLAST_IMAGE)
            subprocess.run([*tag, NEXT_BALLAST_IMAGE], capture_output=True, check=True)
        mark.write_text(archive.name)
        count += 1
    return count
