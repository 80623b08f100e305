"""Watches the streams of routes that are passed on, whose bytes go on as they come.

The events of `/v1/responses`, `/v1/messages` and `/cohere/v2/chat` (vLLM 0.32) have names: in the `event:` line, or as
the `type` of the data. Names that end with `delta` bring output, one event a token; a usage in the stream is more exact
and wins. Of other streams nothing is known: each event brings something, and wherever HTTP ends them they are whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ballast_gateway import paths
from ballast_gateway.proxy.events import DONE, has_error
from ballast_gateway.proxy.sse import TokenMeter

_NAME: Final = re.compile(rb"^event: ?([\w.-]+)|\"type\": ?\"([\w.-]+)\"", re.MULTILINE)
_USAGE: Final = re.compile(rb'"(?:output|completion)_tokens"\s*:\s*(\d{1,15})')
_BEGIN: Final = b"message_start"
"""Its usage is of no output: vLLM's says 0, whatever is to come."""
_ENDS: Final = frozenset(
    {b"response.completed", b"response.incomplete", b"response.failed", b"message_stop", b"message-end"}
)


def meter_of(path: bytes, most_tokens: int) -> TokenMeter:
    """What watches the streams of this route; `most_tokens`: as of `TokenMeter`."""
    return NamedMeter(most_tokens) if path.decode() in paths.GENERATING else AnyMeter(most_tokens)


class AnyMeter(TokenMeter):
    """Of unknown events."""

    __slots__ = ()

    @property
    def is_over(self) -> bool:
        """HTTP knows."""
        return False

    @property
    def is_whole(self) -> bool:
        """HTTP knows."""
        return True

    def _count(self, whole: bytes) -> None:
        self.started = True
        self._events += whole.count(self._separator)


class NamedMeter(TokenMeter):
    """Of events with names."""

    __slots__ = ()

    @property
    def is_over(self) -> bool:
        """HTTP knows: what follows the last named event differs between routes."""
        return False

    def _count(self, whole: bytes) -> None:
        events = whole.split(self._separator)[:-1]
        names = [_name(event) for event in events]
        if has_error(whole) or b"error" in names:
            self.failed = True
            return
        if b'_tokens"' in whole:
            self._take_usage(event for name, event in zip(names, events, strict=True) if name != _BEGIN)
        self._events += sum(name.endswith(b"delta") for name in names)
        self._done = bool(events) and (names[-1] in _ENDS or events[-1].strip().endswith(DONE))
        self.started = self.started or self._events > 0 or self._done

    def _take_usage(self, events: Iterable[bytes]) -> None:
        for event in events:
            if found := _USAGE.findall(event):
                self._usage = min(int(found[-1]), self._most_tokens)


def _name(event: bytes) -> bytes:
    found = _NAME.search(event)
    return b"" if found is None else found[1] or found[2]


def output_tokens(body: bytes) -> int:
    """The output tokens in the `usage` of a whole answer; 0 without one."""
    found = _USAGE.findall(body)
    return int(found[-1]) if found else 0
