"""One worker: a gateway that is told what to do on standard input, and ends when that is closed.

`python -m ballast_gateway.workers.process`, started by the supervisor only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import uvloop

from ballast_api.errors import InvalidInput
from ballast_api.gateway_settings import GatewaySettings
from ballast_gateway import logs, main
from ballast_gateway.app import Gateway
from ballast_gateway.settings_file import News

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told: one line of JSON."""

    number: int
    settings: dict[str, object]
    text_hash: str
    """Of the text that the settings come from."""
    report_to: int
    """Descriptor on which it says that it listens: its ports as a line of JSON."""

    def line(self) -> bytes:
        """For `read`."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Order:
        """Of `line`."""
        return cls(**json.loads(line))


def news_line(news: News) -> bytes:
    """A later line of JSON: a new text of the settings."""
    settings = None if news.settings is None else news.settings.dump()
    return json.dumps({**asdict(replace(news, settings=None)), "settings": settings}).encode() + b"\n"


def read_news(line: bytes) -> News:
    """Of `news_line`."""
    said = json.loads(line)
    settings = None if said["settings"] is None else GatewaySettings.parse(said["settings"])
    return News(said["hash"], settings, said["problem"], tuple(said["waits"]))


def run(order: Order) -> int:
    """Serve until a signal or the end of standard input, drain, and return the exit status."""
    settings = GatewaySettings.parse(order.settings)
    logs.configure(settings.log_level)
    whose = {"worker": str(order.number)}
    logs.WHOSE.set(whose)

    gateway: list[Gateway] = []

    def hear(line: bytes) -> None:
        news = read_news(line)
        if not gateway:
            _log.error("new settings came before there was a gateway", extra={"hash": news.hash})
            return
        gateway[0].hear(news)
        logs.log_from(gateway[0].settings.log_level)

    def started(gateways: list[Gateway]) -> None:
        gateway.extend(gateways)
        os.write(order.report_to, json.dumps(gateways[0].ports).encode() + b"\n")
        os.close(order.report_to)

    async def serve() -> int:
        signals = main.Signals()
        with _lifeline(signals.count, hear):
            return await main.serve({"": settings}, {"": whose}, signals, started, {"": order.text_hash})

    try:
        return uvloop.run(serve())
    except (InvalidInput, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


class _lifeline:  # noqa: N801 - used as a function
    """Calls back when standard input ends: the supervisor is gone, however it went. And passes on the lines on it."""

    def __init__(self, cut: Callable[[], None], hear: Callable[[bytes], None]) -> None:
        self._cut = cut
        self._hear = hear
        self._begun = b""

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._look)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _look(self) -> None:
        data = os.read(sys.stdin.fileno(), 1 << 16)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._cut()
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._hear(line)


def _read_order() -> Order:
    """It is all that comes; then standard input stays open for as long as the supervisor lives."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(sys.stdin.fileno(), 1 << 16)
        if not more:
            sys.exit(2)
        line += more
    return Order.read(line)


if __name__ == "__main__":
    sys.exit(run(_read_order()))
