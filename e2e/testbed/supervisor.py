"""Process 1 of a cluster's namespaces: starts the components, watches them, and takes all of them along when it ends.

The kernel kills every process of a PID namespace with its first process, and drops the mounts and the network with the
last one that uses them. So ending this one process, in whatever state, ends the whole cluster but for its cgroups and
files.

Run by `testbed.lifecycle` as `python -m testbed.supervisor PROGRAMS LISTENER_FD STATE_FOLDER`.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed import commands
from testbed.apiclient import ApiClient, bootstrap_objects
from testbed.errors import TestbedError
from testbed.processes import ProcessRecord
from testbed.relay import Relay
from testbed.spec import ClusterPaths, ClusterSpec, NodeSpec

_STEP_TIMEOUT_S = 90.0
_POLL_S = 0.1


class Children:
    """Starts processes and reaps all that end, orphans of containers included: that is process 1's duty.

    Everything here runs on the event loop's thread, so a process cannot be reaped between its start and its entry.
    """

    def __init__(self, paths: ClusterPaths) -> None:
        loop = asyncio.get_running_loop()
        self._logs, self._outages = paths.logs, paths.outages
        self._components: dict[int, tuple[str, list[str]]] = {}
        self._commands: dict[int, asyncio.Future[int]] = {}
        self.failure: asyncio.Future[str] = loop.create_future()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, name: str, argv: list[str]) -> int:
        """Start a component that must not end; returns its process id."""
        pid = self._spawn(name, argv)
        self._components[pid] = name, argv
        return pid

    async def run(self, name: str, argv: list[str]) -> int:
        """Run a command to its end; returns the exit status."""
        pid = self._spawn(name, argv)
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._commands[pid] = ended
        return await ended

    async def check(self, name: str, argv: list[str]) -> None:
        """Run a command that must succeed; raises TestbedError otherwise."""
        status = await self.run(name, argv)
        if status:
            raise TestbedError(f"{' '.join(argv)} ended with {status}; see log/{name}.log")

    def _spawn(self, name: str, argv: list[str]) -> int:
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        process.returncode = 0  # reaped here, never by the Popen object
        return process.pid

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            command = self._commands.pop(pid, None)
            if command is not None and not command.done():
                command.set_result(code)
            component = self._components.pop(pid, None)
            if component is not None:
                self._ended(*component, code)

    def _ended(self, name: str, argv: list[str], status: int) -> None:
        """A failure, unless it is an outage that was ordered (`lifecycle.outage`): then it starts again in time."""
        order = self._outages / name
        try:
            down_s = float(order.read_text())
        except FileNotFoundError:
            if not self.failure.done():
                self.failure.set_result(f"{name} ended with status {status}; see log/{name}.log")
            return
        order.unlink()
        asyncio.get_running_loop().call_later(down_s, self.start, name, argv)


class Supervisor:
    """Brings one cluster up; progress goes to a file that `up` shows."""

    def __init__(self, spec: ClusterSpec, paths: ClusterPaths, programs: Path, children: Children) -> None:
        self._spec, self._paths, self._programs = spec, paths, programs
        self._children = children
        self._api = ApiClient(spec.api_port, paths.pki)
        self._start_s = time.monotonic()

    def say(self, text: str) -> None:
        with self._paths.progress.open("a") as file:
            file.write(f"{time.monotonic() - self._start_s:5.1f} s  {text}\n")

    async def up(self) -> None:
        """Start everything in order; returns when all nodes are Ready. Raises TestbedError."""
        await self._namespace()
        self.say("starting etcd, kube-apiserver and the nodes' containerd")
        children, spec, paths, programs = self._children, self._spec, self._paths, self._programs
        children.start("etcd", commands.etcd(paths))
        children.start("kube-apiserver", commands.apiserver(spec, paths, programs))
        containerds = {
            node: children.start(f"containerd-{node.name}", commands.containerd(node, paths)) for node in spec.nodes
        }
        async with asyncio.TaskGroup() as group:
            group.create_task(self._control_plane())
            for node, pid in containerds.items():
                group.create_task(self._node(node, pid))
        await self._until(
            "default ServiceAccount", lambda: self._api.exists("/api/v1/namespaces/default/serviceaccounts/default")
        )
        self.say("all nodes are Ready")

    async def _namespace(self) -> None:
        for argv in [*commands.supervisor_mounts(), *commands.network(self._spec, self._paths)]:
            await self._children.check("namespace", argv)

    async def _control_plane(self) -> None:
        await self._until("kube-apiserver", self._api.ready)
        self.say("kube-apiserver is ready")
        for path, body in bootstrap_objects():
            await asyncio.to_thread(self._api.create, path, body)
        paths, programs = self._paths, self._programs
        self._children.start("kube-controller-manager", commands.controller_manager(paths, programs))
        self._children.start("kube-scheduler", commands.scheduler(paths, programs))
        self._children.start("kube-proxy", commands.proxy(paths, programs))
        self._children.start("coredns", commands.coredns(paths, programs))
        enforcer = commands.network_policies(self._spec.nodes[0], paths, programs)
        self._children.start("network-policies", enforcer)

    async def _node(self, node: NodeSpec, containerd_pid: int) -> None:
        socket_path = self._paths.containerd_socket(node.name)
        await self._until(f"containerd of {node.name}", socket_path.is_socket)
        load = commands.ctr(socket_path, "images", "import", str(self._paths.root / "pause.tar"))
        await self._until_command(f"ctr-{node.name}", load)
        await self._until("kube-apiserver", self._api.ready)
        self._children.start(
            f"kubelet-{node.name}", commands.kubelet(node, self._paths, self._programs, containerd_pid)
        )
        await self._until(f"node {node.name}", lambda: self._api.node_ready(node.name))
        if node.gpus:
            await asyncio.to_thread(self._api.give_gpus, node)

    async def _until(self, what: str, predicate: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _STEP_TIMEOUT_S
        while not await asyncio.to_thread(predicate):
            if time.monotonic() > deadline_s:
                raise TestbedError(f"{what} is not ready after {_STEP_TIMEOUT_S:.0f} s")
            await asyncio.sleep(_POLL_S)

    async def _until_command(self, name: str, argv: list[str]) -> None:
        deadline_s = time.monotonic() + _STEP_TIMEOUT_S
        while await self._children.run(name, argv):
            if time.monotonic() > deadline_s:
                raise TestbedError(f"{' '.join(argv)} fails; see log/{name}.log")
            await asyncio.sleep(_POLL_S)


async def supervise(programs: Path, listener: socket.socket, paths: ClusterPaths) -> None:
    """Bring the cluster up, relay its API, and stay. Writes `ready`, or `failed` with the reason."""
    spec = ClusterSpec.from_json(paths.spec.read_text())
    children = Children(paths)
    supervisor = Supervisor(spec, paths, programs, children)
    relay = Relay(listener, ("127.0.0.1", spec.api_port))
    await relay.start()
    bring_up = asyncio.create_task(supervisor.up())
    awaited: set[asyncio.Future[Any]] = {bring_up, children.failure}
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if bring_up.done():
        try:
            await bring_up
            paths.ready.write_text("")
        except* (TestbedError, OSError) as errors:
            paths.failed.write_text("; ".join(map(str, errors.exceptions)))
    # One that ends by itself stays down: to restart it would hide what a test is after. `up` and `status` show it.
    paths.failed.write_text(await children.failure)
    await asyncio.Event().wait()


def main(arguments: list[str]) -> None:
    programs, descriptor, state = Path(arguments[0]), int(arguments[1]), Path(arguments[2])
    paths = ClusterPaths(state)
    # The old /proc still shows the parent's PID namespace: our id there is what `down` needs.
    record = ProcessRecord.of(int(os.readlink("/proc/self")))
    assert record is not None
    (state / "netns").write_text(str(os.stat("/proc/self/ns/net").st_ino))
    record.save(paths.init_record)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(supervise(programs, socket.socket(fileno=descriptor), paths))


if __name__ == "__main__":
    main(sys.argv[1:])
