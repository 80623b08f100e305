"""Runs gateways until a signal: `ballast gateway` without its command line."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import copy_context
from typing import Any

import uvloop

from ballast_api.errors import InvalidInput, Problem
from ballast_api.gateway_settings import GatewaySettings
from ballast_gateway import logs
from ballast_gateway.app import Gateway
from ballast_gateway.logs import Whose
from ballast_gateway.names import short_names
from ballast_gateway.ports import check_ports
from ballast_gateway.settings_file import News, SettingsFile

_log = logging.getLogger(__name__)


def run(gateways: Mapping[str, GatewaySettings], files: Mapping[str, SettingsFile]) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit status. A second signal cuts the drain short.

    `gateways`: by the files that their settings come from; `files`: these, which are followed. Raises `InvalidInput`
    and `OSError` if one cannot start; where there are several, the error names which.
    """
    check_ports(gateways)
    whose: dict[str, Whose] = {file: {"gateway": name} if name else {} for file, name in short_names(gateways).items()}

    def started(running: list[Gateway]) -> None:
        for file, gateway in zip(files.values(), running, strict=True):
            _follow(file, gateway, running)

    hashes = {name: file.hash for name, file in files.items()}
    return uvloop.run(serve(gateways, whose, Signals(), started, hashes))


def _follow(file: SettingsFile, gateway: Gateway, all_of_them: list[Gateway]) -> None:
    def tell(news: News) -> None:
        gateway.hear(news)
        logs.log_from(most_talkative(each.settings.log_level for each in all_of_them))

    gateway.run(file.follow(lambda: gateway.settings, tell))


def most_talkative(levels: Iterable[str]) -> str:
    """A process logs as much as the most talkative of its gateways asks for."""
    return min(levels, key=lambda level: logging.getLevelNamesMapping()[level.upper()])


class Signals:
    """The first one, and any further; make it, then `watch`."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()

    def watch(self) -> None:
        """From now on SIGTERM and SIGINT count."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.count)

    def count(self) -> None:
        """One more."""
        (self.second if self.first.is_set() else self.first).set()


async def serve(
    settings: Mapping[str, GatewaySettings],
    whose: Mapping[str, Whose],
    signals: Signals,
    started: Callable[[list[Gateway]], None],
    hashes: Mapping[str, str],
) -> int:
    """Serve until a signal; returns the exit status. The mappings are by the files of the settings; `hashes` are of
    their texts."""
    signals.watch()
    first, second = signals.first, signals.second
    sys.setswitchinterval(0.001)  # the loop waits no longer for a thread that reads a large body
    gateways: list[Gateway] = []
    try:
        for file, each in settings.items():
            gateways.append(await _started(file, whose[file], each, hashes[file]))
        started(gateways)
        gc.collect()
        gc.freeze()  # what stays as long as the process is walked by no collection: a full one took 10 ms
        await _first_of(first.wait(), *(gateway.failed.wait() for gateway in gateways))
        if any(gateway.failed.is_set() for gateway in gateways):
            return 1
        _log.info("draining", extra={"event": "draining"})
        drain = asyncio.gather(*(gateway.drain() for gateway in gateways))
        await _first_of(asyncio.wait({drain}), second.wait())
        if drain.done():
            if not all(drain.result()):
                _log.warning("requests were cut off at limits.drainTimeoutS", extra={"event": "cut-off"})
            return 0
        _log.warning("a second signal ends the drain", extra={"event": "cut-off"})
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        await asyncio.gather(*(gateway.shut_down() for gateway in gateways))
        return 0
    finally:
        await asyncio.gather(*(gateway.close() for gateway in gateways))


async def _started(file: str, whose: Whose, settings: GatewaySettings, text_hash: str) -> Gateway:
    """In a context of its own, by which log lines know whose they are. What did not start is closed."""
    context = copy_context()
    context.run(logs.WHOSE.set, whose)
    try:
        gateway = context.run(Gateway, settings, whose=whose, text_hash=text_hash)
        try:
            await asyncio.get_running_loop().create_task(gateway.start(), context=context)
        except BaseException:
            await gateway.close()
            raise
    except (InvalidInput, OSError) as error:
        if "gateway" not in whose:
            raise
        raise InvalidInput(file, [Problem("", f"this gateway cannot start: {error}")]) from error
    return gateway


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
