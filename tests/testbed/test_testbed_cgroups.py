"""Finding the machine's cgroup hierarchy, and making and removing a cluster's folders, on a copy in a plain folder."""

from pathlib import Path

import pytest

from testbed import cgroups
from testbed.cgroups import Hierarchy, Version, parse_mounts
from testbed.errors import TestbedError

_V1 = "\n".join(
    f"cgroup /sys/fs/cgroup/{name} cgroup rw,relatime,{name} 0 0" for name in ("cpu", "cpuset", "memory", "pids")
)
_V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0"


def test_version_1_has_a_mount_per_controller() -> None:
    """Every controller's mount point is one to create folders in."""
    found = parse_mounts(f"tmpfs /sys/fs/cgroup tmpfs rw 0 0\n{_V1}")
    assert found.version is Version.V1
    assert Path("/sys/fs/cgroup/cpuset") in found.mounts


def test_hybrid_mode_counts_as_version_1_and_its_unified_part_is_ours_too() -> None:
    """Container runtimes make folders in both."""
    found = parse_mounts(f"{_V1}\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0")
    assert found.version is Version.V1
    assert Path("/sys/fs/cgroup/unified") in found.mounts


def test_controllers_mounted_together_count_each() -> None:
    """cpu,cpuacct on one mount point is common."""
    text = _V1.replace("/cpu cgroup rw,relatime,cpu ", "/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct ")
    assert parse_mounts(text).version is Version.V1


def test_version_2_is_one_hierarchy() -> None:
    """The mount point itself is the only one."""
    assert parse_mounts(_V2) == Hierarchy(Version.V2, (Path("/sys/fs/cgroup"),))


@pytest.mark.parametrize(
    ("mounts", "message"),
    [
        ("proc /proc proc rw 0 0", "no cgroup hierarchy"),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0", "lacks cpuset, memory, pids"),
        ("cgroup2 /somewhere/else cgroup2 rw 0 0", "no cgroup hierarchy"),
    ],
)
def test_a_machine_that_cannot_is_pointed_to_kind(mounts: str, message: str) -> None:
    """The refusal says what is missing and what to use instead."""
    with pytest.raises(TestbedError, match=message) as caught:
        parse_mounts(mounts)
    assert "make e2e-kind" in str(caught.value)


def test_version_1_folders_get_processors_and_memory_nodes(tmp_path: Path) -> None:
    """An empty cpuset would let nothing run; a value that the kernel already put there stays."""
    hierarchy = Hierarchy(Version.V1, (tmp_path,))
    (tmp_path / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset.mems").write_text("0\n")
    for folder in (tmp_path / "ballast-dev", tmp_path / "ballast-dev" / "n1"):
        folder.mkdir()
        (folder / "cpuset.cpus").write_text("\n")
        (folder / "cpuset.mems").write_text("1\n")
    cgroups.create(hierarchy, "dev", ["n1"])
    assert (tmp_path / "ballast-dev" / "n1" / "cpuset.cpus").read_text() == "0-1\n"
    assert (tmp_path / "ballast-dev" / "n1" / "cpuset.mems").read_text() == "1\n"


def test_version_2_turns_controllers_on_for_the_children(tmp_path: Path) -> None:
    """The kubelet needs its controllers in its own folder, so both levels above must hand them down."""
    for folder in (tmp_path, tmp_path / "ballast-dev"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    cgroups.create(Hierarchy(Version.V2, (tmp_path,)), "dev", ["n1"])
    for folder in (tmp_path, tmp_path / "ballast-dev"):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpu +cpuset +io +memory +pids"


def test_version_2_without_a_controller_is_refused(tmp_path: Path) -> None:
    """As in a container that was not given all of them."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    with pytest.raises(TestbedError, match="lacks cpuset, pids"):
        cgroups.create(Hierarchy(Version.V2, (tmp_path,)), "dev", ["n1"])


def test_a_read_only_hierarchy_is_refused_with_a_reason(tmp_path: Path) -> None:
    """Any operating system error becomes one message."""
    (tmp_path / "ballast-dev").write_text("not a folder")
    with pytest.raises(TestbedError, match="cannot prepare cgroups"):
        cgroups.create(Hierarchy(Version.V1, (tmp_path,)), "dev", ["n1"])


def test_removal_takes_whole_trees_and_only_this_clusters(tmp_path: Path) -> None:
    """A cluster whose name begins alike stays."""
    hierarchy = Hierarchy(Version.V1, (tmp_path,))
    (tmp_path / "ballast-dev" / "n1" / "kubepods" / "pod1").mkdir(parents=True)
    (tmp_path / "ballast-dev-b").mkdir()
    cgroups.remove(hierarchy, "dev")
    assert [path.name for path in tmp_path.iterdir()] == ["ballast-dev-b"]


def test_removal_that_fails_says_what_stays(tmp_path: Path) -> None:
    """A folder that cannot be removed is an error, not silence."""
    (tmp_path / "ballast-dev").mkdir()
    (tmp_path / "ballast-dev" / "file").write_text("")
    with pytest.raises(TestbedError, match="ballast-dev"):
        cgroups.remove(Hierarchy(Version.V1, (tmp_path,)), "dev", timeout_s=0.1)
