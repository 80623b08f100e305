"""Start, stop and look at a cluster. The state folder alone is enough to clean up, after a crash at any point too."""

import contextlib
import dataclasses
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from testbed import build, cgroups, oci, packages, render
from testbed.errors import TestbedError
from testbed.overlay import supports_overlay
from testbed.pki import Authority
from testbed.processes import (
    ProcessRecord,
    command_line,
    kill_recorded,
    pids_in_namespace,
    pids_with_arguments,
)
from testbed.spec import PAUSE_IMAGE, ClusterPaths, ClusterSpec, NodeSpec

START_TIMEOUT_S = 180.0
_KILL_TIMEOUT_S = 30.0
_LOG_TAIL_LINES = 8
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Entrance:
    """How a program gets into a running cluster's network."""

    kubeconfig: Path
    prefix: tuple[str, ...]
    programs: Path

    def environment(self) -> dict[str, str]:
        """Variables for a program that runs inside, beside its own."""
        path = os.pathsep.join([str(self.programs), os.environ.get("PATH", os.defpath)])
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": path}


@contextlib.contextmanager
def _locked(paths: ClusterPaths) -> Iterator[None]:
    """One `up` or `down` at a time per cluster. The lock goes with its holder, however that ends."""
    paths.lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        with paths.lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TestbedError(f"another up or down of cluster {paths.root.name} is running; wait for it") from None
            if not (paths.lock.exists() and os.path.samestat(os.fstat(file.fileno()), paths.lock.stat())):
                continue  # the last holder removed it between our open and our lock
            try:
                yield
            finally:
                paths.lock.unlink(missing_ok=True)
            return


def _require_root() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise TestbedError("a real Kubernetes without Docker needs Linux and root; elsewhere use `make e2e-kind`")


def _preflight(paths: ClusterPaths) -> tuple[Path, cgroups.Hierarchy]:
    _require_root()
    absent = packages.missing_packages()
    if absent:
        raise TestbedError(f"missing packages: {' '.join(absent)}. Run `make testbed-build` as root")
    programs = build.require_built()
    for needed in (paths.root, programs, Path(sys.prefix), _PACKAGE_ROOT):
        if any(needed.resolve().is_relative_to(hidden) for hidden in ("/run", "/var/lib", "/var/log")):
            raise TestbedError(
                f"{needed} lies where the cluster has its own folders (/run, /var/lib, /var/log); use another"
            )
    return programs, cgroups.detect()


def _free_loopback_socket() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def up(name: str, nodes: tuple[NodeSpec, ...], say: Say) -> Entrance:
    """Start a cluster and wait until its nodes are Ready; leaves nothing when it cannot. Raises TestbedError."""
    paths = ClusterPaths.of(name)
    programs, hierarchy = _preflight(paths)
    with _locked(paths):
        if _find_init(paths) is not None:
            raise TestbedError(f"cluster {name} is up already; `make cluster-down` stops it")
        if paths.root.exists() or cgroups.folders(hierarchy, name):
            say(f"==> cleaning up what an earlier cluster {name} left")
            _clean(paths, say)
        try:
            with _free_loopback_socket() as listener:
                spec = _prepare(paths, name, nodes, listener.getsockname()[1], programs)
                cgroups.create(hierarchy, name, [node.name for node in nodes])
                process = _launch(paths, programs, listener)
            _wait_ready(paths, process, say)
        except BaseException:
            # Ctrl-C too: half a cluster is of no use.
            _clean(paths, say)
            raise
    say(f"==> cluster {name}: {len(spec.nodes)} nodes, API server on 127.0.0.1:{spec.api_port} (here and inside)")
    return enter(name)


def _prepare(paths: ClusterPaths, name: str, nodes: tuple[NodeSpec, ...], api_port: int, programs: Path) -> ClusterSpec:
    paths.root.mkdir(mode=0o700, parents=True)
    paths.logs.mkdir()
    spec = ClusterSpec(name, nodes, api_port, "overlayfs" if supports_overlay(paths.root) else "native")
    paths.spec.write_text(spec.to_json())
    Authority(paths.pki).create(spec)
    render.write_all(spec, paths)
    pause = oci.LayerFile("pause", 0o755, (programs / "pause").read_bytes())
    oci.write_archive(paths.root / "pause.tar", PAUSE_IMAGE, [pause], ["/pause"])
    return spec


def _supervisor_arguments(paths: ClusterPaths, programs: Path, descriptor: int) -> list[str]:
    return ["-m", "testbed.supervisor", str(programs), str(descriptor), str(paths.root)]


def _launch(paths: ClusterPaths, programs: Path, listener: socket.socket) -> subprocess.Popen[bytes]:
    namespaces = ["--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private"]
    argv = [packages.find_program("unshare"), *namespaces, "--", sys.executable]
    # PATH for the programs that components call themselves: runc, nft, conntrack, iptables.
    environment = {
        "PATH": packages.SEARCH_PATH,
        "PYTHONPATH": str(_PACKAGE_ROOT),
        "HOME": str(paths.root),
        "LANG": "C.UTF-8",
    }
    with (paths.logs / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            [*argv, *_supervisor_arguments(paths, programs, listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd="/",
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )


def _wait_ready(paths: ClusterPaths, process: subprocess.Popen[bytes], say: Say) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    shown = 0
    while True:
        ready, failed, ended = paths.ready.exists(), paths.failed.exists(), process.poll() is not None
        lines = paths.progress.read_text().splitlines() if paths.progress.exists() else []
        for line in lines[shown:]:
            say(f"    {line}")
        shown = len(lines)
        if failed or ended:
            reason = paths.failed.read_text() if failed else "the supervisor ended"
            raise TestbedError(f"the cluster did not start: {reason}\n{_log_tails(paths)}")
        if ready:
            return
        if time.monotonic() > deadline_s:
            raise TestbedError(f"the cluster did not start within {START_TIMEOUT_S:.0f} s\n{_log_tails(paths)}")
        time.sleep(0.1)


def _log_tails(paths: ClusterPaths) -> str:
    tails = []
    for log in sorted(paths.logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        if lines:
            tails.append(f"--- {log.name}\n" + "\n".join(line[:400] for line in lines))
    return "\n".join(tails)


def _find_init(paths: ClusterPaths) -> ProcessRecord | None:
    """The cluster's living first process: by its record or, when it had no time to write one, by its arguments."""
    record = ProcessRecord.load(paths.init_record)
    if record is not None and record.alive():
        return record
    for pid in _launched(paths):
        record = ProcessRecord.of(pid)
        if record is not None:
            return record
    return None


def _launched(paths: ClusterPaths) -> list[int]:
    """Processes that were started as this cluster's supervisor, `unshare` before it becomes one included."""
    found = pids_with_arguments((str(paths.root),))
    return [pid for pid in found if "testbed.supervisor" in command_line(pid)]


def down(name: str, say: Say) -> None:
    """Stop a cluster and remove all that it left; fine when there is none. Raises TestbedError when something stays."""
    _require_root()
    paths = ClusterPaths.of(name)
    with _locked(paths):
        there = paths.root.exists() or bool(_launched(paths)) or bool(cgroups.folders(cgroups.detect(), name))
        if not there:
            say(f"==> no cluster {name}")
            return
        _clean(paths, say)
        say(f"==> cluster {name} is gone")
    with contextlib.suppress(OSError):
        paths.root.parent.rmdir()  # only when empty


def _clean(paths: ClusterPaths, say: Say) -> None:
    while (record := _find_init(paths)) is not None:
        if not kill_recorded(record, _KILL_TIMEOUT_S):
            raise TestbedError(f"process {record.pid} does not end; try again")
    cgroups.remove(cgroups.detect(), paths.root.name)
    _report_visitors(paths, say)
    if paths.root.exists():
        _remove_folder(paths.root)


def _report_visitors(paths: ClusterPaths, say: Say) -> None:
    """Programs that a user started inside are not ours to end, but they keep the empty network namespace alive."""
    try:
        inode = int((paths.root / "netns").read_text())
    except (FileNotFoundError, ValueError):
        return
    if inode == os.stat("/proc/self/ns/net").st_ino:
        return  # the number was given to another namespace since
    for pid in pids_in_namespace("net", inode):
        say(f"    process {pid} still runs inside: {' '.join(command_line(pid))[:120]}")


def _remove_folder(folder: Path) -> None:
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [point for point in mounted if Path(point).is_relative_to(folder)]
    if inside:
        raise TestbedError(f"mounts below the state folder: {', '.join(inside)}; unmount them first")
    shutil.rmtree(folder)


def enter(name: str) -> Entrance:
    """The way into a running cluster. Raises TestbedError when it is not up."""
    paths = ClusterPaths.of(name)
    record = _find_init(paths)
    if record is None or not paths.ready.exists():
        raise TestbedError(f"cluster {name} is not up; `make cluster-up` starts it")
    prefix = (packages.find_program("nsenter"), f"--net=/proc/{record.pid}/ns/net", "--")
    return Entrance(paths.kubeconfig, prefix, build.bin_folder())


def outage(name: str, program: str, down_s: float) -> None:
    """SIGKILL a component by its program's name, such as kube-apiserver; it starts again so many seconds later.

    Raises TestbedError when the cluster is not up, or runs no or several of these.
    """
    paths = ClusterPaths.of(name)
    init = _find_init(paths)
    if init is None or not paths.ready.exists():
        raise TestbedError(f"cluster {name} is not up; `make cluster-up` starts it")
    inode = os.stat(f"/proc/{init.pid}/ns/pid").st_ino
    named = [pid for pid in pids_in_namespace("pid", inode) if Path((command_line(pid) or [""])[0]).name == program]
    records = [record for record in map(ProcessRecord.of, named) if record is not None]
    if len(records) != 1:
        raise TestbedError(f"program: cluster {name} runs {len(records)} of {program!r}; name one that runs once")
    paths.outages.mkdir(exist_ok=True)
    (paths.outages / program).write_text(str(down_s))
    if not kill_recorded(records[0], _KILL_TIMEOUT_S):
        raise TestbedError(f"{program} (process {records[0].pid}) does not end; try again")


def failure(name: str) -> str | None:
    """What has ended in a running cluster since it was up, or None."""
    paths = ClusterPaths.of(name)
    return paths.failed.read_text() if paths.failed.exists() else None


def spec_of(name: str) -> ClusterSpec:
    """The description of a cluster that is up. Raises TestbedError when there is none."""
    try:
        return ClusterSpec.from_json(ClusterPaths.of(name).spec.read_text())
    except FileNotFoundError:
        raise TestbedError(f"cluster {name} is not up; `make cluster-up` starts it") from None
