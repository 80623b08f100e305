"""The nodes' cgroups: which hierarchy the machine has, and making and removing ours.

Version 1 has one hierarchy per controller, each mounted below /sys/fs/cgroup; version 2 has a single one. The kubelet
gets `/ballast-NAME/NODE` as its root in either, so that all that pods use is accounted below one folder, which goes
with the cluster.
"""

import dataclasses
import enum
import os
import signal
import time
from pathlib import Path

from testbed.errors import TestbedError

CGROUP_ROOT = Path("/sys/fs/cgroup")
# What the kubelet's cgroup manager refuses to start without.
_REQUIRED = frozenset({"cpu", "cpuset", "memory", "pids"})


class Version(enum.Enum):
    V1 = 1
    V2 = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Hierarchy:
    """The version and the mount points to create folders in: one for version 2, one per controller for version 1."""

    version: Version
    mounts: tuple[Path, ...]


def parse_mounts(mounts: str) -> Hierarchy:
    """The hierarchy from the text of /proc/mounts. Raises TestbedError when required controllers are missing.

    A machine with both (hybrid mode) counts as version 1, as the controllers are there; container runtimes make folders
    in both, so both are ours to remove.
    """
    v1: dict[str, set[str]] = {}
    v2: list[str] = []
    for line in mounts.splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup":
            v1.setdefault(point, set()).update(options.split(","))
        elif kind == "cgroup2":
            v2.append(point)
    if v1:
        absent = _REQUIRED - set().union(*v1.values())
        if absent:
            raise TestbedError(f"cgroup v1 lacks {', '.join(sorted(absent))}; use `make e2e-kind` on this machine")
        return Hierarchy(Version.V1, tuple(sorted(Path(point) for point in [*v1, *v2])))
    if str(CGROUP_ROOT) in v2:
        return Hierarchy(Version.V2, (CGROUP_ROOT,))
    raise TestbedError(f"no cgroup hierarchy is mounted at {CGROUP_ROOT}; use `make e2e-kind` on this machine")


def detect() -> Hierarchy:
    return parse_mounts(Path("/proc/mounts").read_text())


def root_name(cluster: str) -> str:
    """Name of the cluster's folder in every hierarchy."""
    return f"ballast-{cluster}"


def create(hierarchy: Hierarchy, cluster: str, nodes: list[str]) -> None:
    """Make the folders of a cluster's nodes. Raises TestbedError when the machine does not let us."""
    try:
        for mount in hierarchy.mounts:
            if hierarchy.version is Version.V2:
                _delegate(mount)
            folder = mount / root_name(cluster)
            folder.mkdir(exist_ok=True)
            if hierarchy.version is Version.V2:
                _delegate(folder)
            for node in nodes:
                (folder / node).mkdir(exist_ok=True)
                _inherit_cpuset(mount, folder)
                _inherit_cpuset(folder, folder / node)
    except OSError as error:
        raise TestbedError(
            f"cannot prepare cgroups ({error}); the test bed needs the root of the hierarchy (not a container's): "
            "run it on the machine itself, or use `make e2e-kind`"
        ) from error


def _delegate(folder: Path) -> None:
    """Version 2: let children have every controller that this folder has. It stays so: systemd does the same."""
    available = set((folder / "cgroup.controllers").read_text().split())
    absent = _REQUIRED - available
    if absent:
        raise TestbedError(
            f"cgroup v2 at {folder} lacks {', '.join(sorted(absent))}; use `make e2e-kind` on this machine"
        )
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(available)))


def _inherit_cpuset(parent: Path, child: Path) -> None:
    """Version 1: a new cpuset is empty, and nothing can run in it until it has processors and memory nodes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (child / name).exists() and (parent / name).exists() and not (child / name).read_text().strip():
            value = (parent / name).read_text()
            if value.strip():
                (child / name).write_text(value)


def folders(hierarchy: Hierarchy, cluster: str) -> list[Path]:
    """The cluster's folders that exist."""
    found = [mount / root_name(cluster) for mount in hierarchy.mounts]
    return [folder for folder in found if folder.is_dir()]


def remove(hierarchy: Hierarchy, cluster: str, timeout_s: float = 10.0) -> None:
    """Remove the cluster's folders, ending what runs in them (only pods can). Raises TestbedError when they stay."""
    deadline = time.monotonic() + timeout_s
    while remaining := folders(hierarchy, cluster):
        for folder in remaining:
            _remove_tree(folder)
        if not folders(hierarchy, cluster):
            return
        if time.monotonic() > deadline:
            raise TestbedError(f"cgroups stay busy: {', '.join(map(str, folders(hierarchy, cluster)))}")
        time.sleep(0.05)


def _remove_tree(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        try:
            for pid in (Path(path) / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        except (OSError, ValueError):
            pass
        try:
            Path(path).rmdir()
        except OSError:
            continue
