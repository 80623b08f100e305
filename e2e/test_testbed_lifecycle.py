"""Starting and stopping the test bed leaves nothing behind, whatever happens in between."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import wait_until
from testbed import build, packages
from testbed.processes import ProcessRecord, command_line, pids_in_namespace, running_pids
from testbed.spec import ClusterPaths

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.rotating(3)]

_PACKAGES = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _able() -> None:
    """Root, packages and programs; their absence is a reason to skip on a user's machine, and a failure in CI."""
    reason = None
    if sys.platform != "linux" or os.geteuid() != 0:
        reason = "needs Linux and root"
    elif packages.missing_packages() or build.missing(build.bin_folder()):
        reason = "needs `make testbed-build`"
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def _start(command: str, name: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "testbed", command, "--name", name, *arguments],
        env={**os.environ, "PYTHONPATH": str(_PACKAGES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _testbed(command: str, name: str, *arguments: str) -> str:
    with _start(command, name, *arguments) as process:
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


@pytest.fixture
def name() -> Iterator[str]:
    """A cluster name of the test's own; whatever it started is stopped."""
    chosen = f"t-{secrets.token_hex(4)}"
    yield chosen
    _testbed("down", chosen)


def _host_network() -> list[str]:
    """Links, routes and rules of the machine itself, also when this test runs inside a cluster's network."""
    # Who started us did so from the machine's network, be it a shell or `testbed session`.
    machine = ["nsenter", f"--net=/proc/{os.getppid()}/ns/net", "--"]
    # Without addresses' lifetimes and rules' counters, which change by themselves.
    commands = (
        ["ip", "-o", "link"],
        ["ip", "route", "show", "table", "all"],
        ["nft", "--stateless", "list", "ruleset"],
    )
    return [subprocess.run([*machine, *c], capture_output=True, text=True, check=True).stdout for c in commands]


def _host_settings() -> dict[str, str]:
    names = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
    return {name: Path("/proc/sys", name).read_text() for name in names}


def _cgroups(name: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob(f"ballast-{name}") if path.is_dir()]


def _leftovers(name: str, processes: list[ProcessRecord]) -> list[str]:
    """Everything of a cluster that is still there, in words; `processes` are those it had."""
    root = str(ClusterPaths.of(name).root)
    own = [os.getpid(), os.getppid()]
    found = [f"cgroup {path}" for path in _cgroups(name)]
    found += [f"process {p}" for p in running_pids() if p not in own and any(root in a for a in command_line(p))]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if root in line]
    found += [f"process {record.pid} of its network" for record in processes if record.alive()]
    found += [f"file {path}" for path in Path(root).parent.glob(f"{name}*")]
    found += [f"trace {path}" for path in ("/var/lib/kubelet", "/var/lib/cni") if Path(path).exists()]
    return found


def _processes(name: str) -> list[ProcessRecord]:
    """The processes in a cluster's network now, as records: its number may be given to another network later."""
    try:
        inode = int((ClusterPaths.of(name).root / "netns").read_text())
    except (FileNotFoundError, ValueError):
        return []
    return [record for pid in pids_in_namespace("net", inode) if (record := ProcessRecord.of(pid)) is not None]


def test_down_leaves_nothing_and_the_machine_is_untouched(name: str) -> None:
    """No process, mount, cgroup, namespace or file stays; the machine's network and settings are as before."""
    network, settings = _host_network(), _host_settings()
    output = _testbed("up", name, "--nodes", "none")
    kubeconfig = output.rsplit("KUBECONFIG=", 1)[1].splitlines()[0]
    assert settings == _host_settings()
    assert network == _host_network()
    assert _leftovers(name, _processes(name)) != []
    # The relay on this machine's loopback: a verified TLS connection from outside of the cluster's network.
    kubectl = str(build.bin_folder() / "kubectl")
    version = subprocess.run(
        [kubectl, "--kubeconfig", kubeconfig, "version", "-o", "json"], capture_output=True, text=True, check=True
    )
    assert json.loads(version.stdout)["serverVersion"]["gitVersion"] == build.KUBERNETES_VERSION

    processes = _processes(name)
    _testbed("down", name)
    assert wait_until(lambda: _leftovers(name, processes) == [], 10, "nothing is left")
    assert network == _host_network()
    assert settings == _host_settings()


@pytest.mark.parametrize("delay_s", [0.2, 0.5, 0.8, 1.5, 3.0])
def test_down_cleans_up_after_up_was_killed_half_way(name: str, delay_s: float) -> None:
    """kill -9 of `up` at any moment: `down` finds all that there is by what lies on disk."""
    with _start("up", name) as process:
        time.sleep(delay_s)
        process.kill()
    processes = _processes(name)
    _testbed("down", name)
    assert wait_until(lambda: _leftovers(name, processes) == [], 10, "nothing is left")


def test_down_cleans_up_after_the_supervisor_was_killed(name: str) -> None:
    """The kernel ends everything with the first process; cgroups and files go with `down`."""
    _testbed("up", name, "--nodes", "none")
    processes = _processes(name)
    record = ProcessRecord.load(ClusterPaths.of(name).init_record)
    assert record is not None
    assert record in processes
    os.kill(record.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(process.alive() for process in processes), 10, "every process went along")
    _testbed("down", name)
    assert wait_until(lambda: _leftovers(name, processes) == [], 10, "nothing is left")


def test_up_starts_over_where_a_crash_left_something(name: str) -> None:
    """A dead cluster's remains do not need a `down` first."""
    with _start("up", name) as process:
        record = wait_until(lambda: ProcessRecord.load(ClusterPaths.of(name).init_record), 60, "process 1 runs")
        process.kill()
    os.kill(record.pid, signal.SIGKILL)
    assert "cleaning up" in _testbed("up", name, "--nodes", "none")


def test_two_clusters_do_not_meet(name: str) -> None:
    """Same addresses, other namespaces: each has its own objects, and stopping one leaves the other alone."""
    other = f"{name}-b"
    try:
        _testbed("up", name, "--nodes", "none")
        _testbed("up", other, "--nodes", "none")
        _testbed("run", name, "--", "kubectl", "create", "namespace", "only-here")
        assert "only-here" in _testbed("run", name, "--", "kubectl", "get", "namespaces")
        assert "only-here" not in _testbed("run", other, "--", "kubectl", "get", "namespaces")
        _testbed("down", other)
        assert "only-here" in _testbed("run", name, "--", "kubectl", "get", "namespaces")
    finally:
        _testbed("down", other)


def test_there_is_no_way_out(name: str) -> None:
    """From inside, no address of the machine or beyond answers: the network has no link to the outside."""
    _testbed("up", name, "--nodes", "none")
    links = json.loads(_testbed("run", name, "--", "ip", "-j", "link"))
    assert {link["ifname"] for link in links} == {"lo", "node0"}
    attached = json.loads(_testbed("run", name, "--", "ip", "-j", "link", "show", "master", "node0"))
    assert attached == []


def test_a_second_up_is_refused_and_changes_nothing(name: str) -> None:
    """`up` of a running cluster says so, and the cluster stays."""
    _testbed("up", name, "--nodes", "none")
    with _start("up", name) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "is up already" in output
    assert "Ready" in _testbed("status", name)


def _start_session(marker: Path) -> tuple[subprocess.Popen[str], str]:
    """A session whose command has begun to run inside, and its cluster's name."""
    script = f"touch {marker}; exec sleep 600"
    arguments = ["--nodes", "none", "--no-images", "--", "sh", "-c", script]
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", "session", *arguments],
        env={**os.environ, "PYTHONPATH": str(_PACKAGES)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_until(marker.exists, 100, "the command runs inside")
    return process, f"e2e-{process.pid}"


def test_a_session_that_is_told_to_end_stops_its_cluster(tmp_path: Path) -> None:
    """SIGTERM, as CI systems send it: the command ends, the cluster goes."""
    process, cluster = _start_session(tmp_path / "runs")
    processes = _processes(cluster)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert wait_until(lambda: _leftovers(cluster, processes) == [], 10, "nothing is left")


def test_the_next_session_cleans_up_after_one_that_was_killed(tmp_path: Path) -> None:
    """kill -9 leaves a cluster that nobody holds; its command ends at once."""
    process, abandoned = _start_session(tmp_path / "runs")
    processes = _processes(abandoned)
    process.kill()
    process.wait()
    held, other = _start_session(tmp_path / "holds")
    try:
        assert _leftovers(abandoned, processes) == []
        assert ClusterPaths.of(other).ready.exists()
    finally:
        held.terminate()
        held.wait(60)
    assert _leftovers(other, []) == []
