"""Starts workers, starts dead ones again, and ends them all: the process that has the signals and the admin port."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop

from ballast_api.gateway_settings import GatewaySettings, Listeners
from ballast_api.settings_changes import taken
from ballast_core import kernel
from ballast_gateway import logs
from ballast_gateway.admin_server import AdminServer
from ballast_gateway.main import Signals
from ballast_gateway.ports import opening
from ballast_gateway.settings_file import News, SettingsFile
from ballast_gateway.tls.pem import as_file
from ballast_gateway.who_may_ask import WhoMayAsk
from ballast_gateway.workers.admin import Admin
from ballast_gateway.workers.process import Order, news_line

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_STEADY_S: Final = 30.0
"""A worker that has lived for so long is started again at once."""
_LAST_S: Final = 10.0
"""For a worker to end, beyond the time that its drain may take."""
_LOOK_S: Final = 10.0
_MOST_MISSED: Final = 3
"""Looks in a row that a worker may leave without an answer: as a kubelet's at a gateway of one process."""
_LONGEST_START_S: Final = 120.0
"""For a worker to serve: many times what it takes on a busy machine, and for others it waits for seconds at most."""


def run(settings: GatewaySettings, file: SettingsFile) -> int:
    """Serve with `settings.workers` processes until SIGTERM or SIGINT, drain them, and return the exit status. A second
    signal cuts the drains short. `file`: where the settings come from; workers are told its changes. Raises
    `InvalidInput` if a port is taken, or for a bad token file."""
    return uvloop.run(_Supervisor(settings, file).run())


class _Supervisor:
    def __init__(self, settings: GatewaySettings, file: SettingsFile) -> None:
        self._settings = settings
        self._file = file
        self._signals = Signals()
        self._workers = [_Worker(number, settings, file.hash) for number in range(settings.workers)]

    async def run(self) -> int:
        self._signals.watch()
        at = self._settings.listeners
        token_file = self._settings.admin.token_file
        who_may_ask = WhoMayAsk(None if token_file is None else Path(token_file))
        with (
            _reserved(self._settings) as ports,
            _token(self._settings) as token,
            _pod_api_ports(self._settings) as pod_apis,
        ):
            admin = Admin(self._admin_ports, who_may_ask)
            with opening("listeners.admin", at.host, at.admin):
                server = AdminServer(admin, at.host, at.admin)
            for worker, port in zip(self._workers, pod_apis, strict=True):
                worker.settings = _of_worker(self._settings, ports, port, pod_apis, token)
            try:
                return await self._serve({"admin": server.port, **ports}, admin)
            finally:
                await asyncio.gather(*(worker.end(0.0) for worker in self._workers))
                await server.aclose()
                await admin.aclose()

    async def _serve(self, ports: dict[str, int], admin: Admin) -> int:
        begun = await asyncio.gather(*(worker.start() for worker in self._workers))
        if not all(begun):  # it has said why
            return max(status for worker in self._workers if (status := worker.status) is not None) or 1
        extra = {"event": "listening", "ports": ports, "decided_by": kernel.name(), "workers": len(begun)}
        _log.info("listening", extra=extra)
        watches = [asyncio.create_task(self._keep(worker)) for worker in self._workers]
        watches.append(asyncio.create_task(self._kill_hung(admin)))
        watches.append(asyncio.create_task(self._file.follow(lambda: self._settings, self._hear)))
        try:
            await self._signals.first.wait()
            _log.info("draining", extra={"event": "draining"})
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        hurry = asyncio.create_task(self._hurry())
        limit_s = self._settings.limits.longest_drain_s
        statuses = await asyncio.gather(*(worker.end(limit_s) for worker in self._workers))
        hurry.cancel()
        return max(status if status >= 0 else 1 for status in statuses)

    def _hear(self, news: News) -> None:
        if news.settings is not None:
            self._settings = news.settings
            logs.log_from(news.settings.log_level)
        for worker in self._workers:
            worker.hear(news)

    async def _hurry(self) -> None:
        await self._signals.second.wait()
        for worker in self._workers:
            worker.signal()

    async def _keep(self, worker: _Worker) -> None:
        """Start it again whenever it has ended."""
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = loop.time()
            status = await worker.ended()
            extra = {"event": "worker-ended", "worker": str(worker.number), "status": status}
            _log.error("a worker has ended; it is started again", extra=extra)
            pause_s = _FIRST_PAUSE_S if loop.time() - began_s > _STEADY_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            await self._start_again(worker, pause_s)

    async def _start_again(self, worker: _Worker, pause_s: float) -> None:
        """After this pause, and after longer ones for as long as the system has no process or descriptor to give."""
        while True:
            await asyncio.sleep(pause_s)
            try:
                await worker.start()
                return
            except OSError as error:
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                extra = {"event": "worker-not-started", "worker": str(worker.number), "problem": str(error)}
                _log.error("a worker cannot be started; it is tried again", extra={**extra, "retry_in_s": pause_s})

    async def _kill_hung(self, admin: Admin) -> None:
        """The system goes on to deal them connections; once dead, they are started again."""
        missed: dict[str, int] = {}
        while True:
            await asyncio.sleep(_LOOK_S)
            missed = {number: missed.get(number, 0) + 1 for number in await admin.silent()}
            for worker in self._workers:
                if missed.get(number := str(worker.number), 0) >= _MOST_MISSED:
                    extra = {"event": "worker-hung", "worker": number}
                    _log.error("a worker does not answer, and is killed", extra=extra)
                    worker.kill()
                    del missed[number]

    def _admin_ports(self) -> dict[str, int | None]:
        return {str(worker.number): worker.admin_port for worker in self._workers}


class _Worker:
    """A process, and the next one after it has ended."""

    def __init__(self, number: int, settings: GatewaySettings, text_hash: str) -> None:
        self.number = number
        self.settings = settings
        self._text_hash = text_hash
        self._taken: News | None = None
        """Of the newest text that was taken."""
        self._refused: News | None = None
        """Of a later one."""
        self.admin_port: int | None = None
        """On loopback; None while it does not serve."""
        self.status: int | None = None
        """With which it ended."""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> bool:
        """Returns when it serves, or False when it has ended before, or was killed since it had not come so far in
        `_LONGEST_START_S`. Raises `OSError`: no process is to be had."""
        reads, writes = os.pipe()
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "ballast_gateway.workers.process"),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(writes,),
                start_new_session=True,  # a terminal's Ctrl-C is the supervisor's
            )
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)
        assert process.stdin is not None
        begins_with = self._taken
        process.stdin.write(Order(self.number, self.settings.dump(), self._text_hash, writes).line())
        try:
            async with asyncio.timeout(_LONGEST_START_S):
                line = await _line_of(reads)
        except TimeoutError:
            _log.error("a worker does not come to serve, and is killed", extra={"worker": str(self.number)})
            self.kill()
            line = b""
        if not line:
            await self.ended()
            return False
        self.admin_port = json.loads(line)["admin"]
        for news in (self._taken, self._refused):
            if news is not None and (news is not begins_with or news.waits):  # the order says neither
                process.stdin.write(news_line(news))
        return True

    def hear(self, news: News) -> None:
        """Pass on what a new text says, with what is this worker's own; the next process learns it, too."""
        if news.settings is None:
            self._refused = news
        else:
            self.settings, self._text_hash = taken(news.settings, self.settings), news.hash
            self._taken = news = replace(news, settings=self.settings)
            self._refused = None
        if self.admin_port is not None and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(news_line(news))

    async def ended(self) -> int:
        """Wait for its end; returns its status."""
        assert self._process is not None
        self.status = await self._process.wait()
        self.admin_port = None
        return self.status

    def signal(self) -> None:
        """Ask it to end; a second time: at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def end(self, drain_s: float) -> int:
        """Ask it to end, wait for so long and a little more, then kill it. Returns its status."""
        if self._process is None:
            return 0
        self.signal()
        try:
            async with asyncio.timeout(drain_s + _LAST_S):
                await self._process.wait()
        except TimeoutError:
            _log.error("a worker does not end, and is killed", extra={"worker": str(self.number)})
            self.kill()
        return await self.ended()


async def _line_of(descriptor: int) -> bytes:
    """What is written to a pipe until it is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _of_worker(
    settings: GatewaySettings, ports: Mapping[str, int], pod_api: int, pod_apis: Sequence[int], token_file: str
) -> GatewaySettings:
    """The same, with ports that are known, any port for the admin API, and the others as peers: they are as replicas
    that hear each other."""
    host = settings.listeners.host
    near = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    siblings = [f"{near}:{port}" for port in pod_apis if port != pod_api]
    return settings.model_copy(
        update={
            "listeners": settings.listeners.model_copy(update={**ports, "admin": 0}),
            "pod_api": settings.pod_api.model_copy(update={"token_file": token_file, "port": pod_api}),
            "peers": settings.peers.model_copy(update={"addresses": (*settings.peers.addresses, *siblings)}),
        }
    )


@contextmanager
def _token(settings: GatewaySettings) -> Iterator[str]:
    """The file of the fleet's token; without a fleet, one of a token that only the workers have."""
    if settings.pod_api.token_file is not None:
        yield settings.pod_api.token_file
    else:
        with as_file(secrets.token_hex(32).encode()) as file:
            yield file.replace("/proc/self/", f"/proc/{os.getpid()}/")


@contextmanager
def _pod_api_ports(settings: GatewaySettings) -> Iterator[list[int]]:
    """One for each worker: the others must be able to tell them apart. Those that are set are one after another. They
    stay ours while a worker starts again. Raises `InvalidInput` for one that is taken."""
    host, first = settings.listeners.host, settings.pod_api.port
    is_set = settings.pod_api.token_file is not None and first
    with ExitStack() as held:
        ports = []
        for number in range(settings.workers):
            port = first + number if is_set else 0
            with opening("podApi.port", host, port):
                if is_set:
                    _check_free(_family(host), host, port)
                bound = held.enter_context(_bound(host, port))
            ports.append(bound.getsockname()[1])
        yield ports


@contextmanager
def _reserved(settings: GatewaySettings) -> Iterator[dict[str, int]]:
    """The ports that workers share, by the names of their settings; they stay ours while no worker lives. Raises
    `InvalidInput` for one that is taken, by a gateway with workers, too."""
    at, face = settings.listeners, settings.face
    wanted = {"proxy": at.proxy} if face.serves_proxy else {}
    if face.serves_picker:
        wanted |= {"ext_proc": at.ext_proc, "grpc_health": at.grpc_health}
    family = _family(at.host)
    with ExitStack() as held:
        for name, port in wanted.items():
            with opening(f"listeners.{Listeners.model_fields[name].alias}", at.host, port):
                _check_free(family, at.host, port)
                wanted[name] = held.enter_context(_bound(at.host, port)).getsockname()[1]
        yield wanted


def _check_free(family: int, host: str, port: int) -> None:
    """Who shares ports would not be told that another does, too."""
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            alone.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(error.errno, f"address ({host!r}, {port}) is already in use") from None


def _bound(host: str, port: int) -> socket.socket:
    """It does not listen: connections go to those that do, and who listens there sets the same options."""
    bound = socket.socket(_family(host), socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
