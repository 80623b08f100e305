"""JSON lines: messages on standard error, one line for each request on standard output."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TextIO, TypeAlias

from ballast_gateway.records import RequestRecord

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FLUSH_S = 0.1
Whose: TypeAlias = Mapping[str, str]
"""Fields of log lines, and labels of metrics, that tell apart what writes to one place: `gateway` or `worker`."""
ALONE: Final[Whose] = MappingProxyType({})
WHOSE: ContextVar[Whose] = ContextVar("whose", default=ALONE)
"""Of the gateway at work."""
_ATOMIC_BYTES: Final = 4096
"""What a pipe takes in one piece, whoever else writes to it (PIPE_BUF on Linux)."""


class JsonFormatter(logging.Formatter):
    """A log record with its extra values as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= WHOSE.get()
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send every logger of the process to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for chatty in ("httpx", "uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


def log_from(level: str) -> None:
    """Log from this level on, after `configure`."""
    logging.getLogger().setLevel(level.upper())


def timestamp(unix_s: float) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    second, microseconds = divmod(round(unix_s * 1e6), 1_000_000)
    return f"{_second(second)}.{microseconds:06d}Z"


@lru_cache(maxsize=4)
def _second(unix_s: int) -> str:
    """Every line of a second has it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class LineWriter:
    """Writes lines in batches, a few times a second: a system call for each would cost more than making them."""

    def __init__(self, out: TextIO, loop: asyncio.AbstractEventLoop, *, shared: bool = False) -> None:
        """`shared`: other processes write to `out`, too, so it is written in pieces that stay whole."""
        self._out = out
        self._shared = shared
        self._loop = loop
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def write(self, line: str) -> None:
        """Add one line, without its end."""
        self._lines.append(line)
        if self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the waiting lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        for piece in _pieces(lines) if self._shared else [lines]:
            if piece:
                self._out.write("\n".join(piece) + "\n")
                self._out.flush()


def _pieces(lines: list[str]) -> Iterator[list[str]]:
    """A line that is longer than a piece is one by itself, and may be torn."""
    piece: list[str] = []
    size = 0
    for line in lines:
        more = len(line.encode()) + 1
        if size + more > _ATOMIC_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(line)
        size += more
    yield piece


class RequestLog:
    """The canonical log line of each request. `unix_s` as for `DecisionLog`."""

    def __init__(self, writer: LineWriter, *, unix_s: float, whose: Whose = ALONE) -> None:
        self._writer = writer
        self._unix_s = unix_s
        self._begin = f"{json.dumps(dict(whose))[:-1]}, " if whose else "{"

    def __call__(self, record: RequestRecord) -> None:
        line = record.as_json(timestamp(record.ended_s + self._unix_s))
        self._writer.write(self._begin + line[1:])
