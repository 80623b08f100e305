"""Takes the usage at its end out of a stream whose client did not ask for it.

The gateway asks for it in streams that it does not hold: events count tokens only where each has one, which with
`--stream-interval` or speculative decoding they do not. What vLLM says in the event of the usage beside it
(`system_fingerprint`, `metrics`) it would have said in the one before, so that one waits for it.
"""

from __future__ import annotations

import re
from typing import Final

from ballast_gateway import openai_body
from ballast_gateway.proxy.events import FINISHED, SEPARATOR
from ballast_gateway.proxy.sse import NO_CHOICES

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_OTHER_SEPARATOR: Final = b"\r\n\r\n"
_MOST_FIRST_BYTES: Final = 64 * 1024 * 1024
"""Of an event: the first one may have the prompt, with log-probabilities."""
_MOST_BYTES: Final = 1024 * 1024
"""Of one after that."""
_OF_USAGE: Final = frozenset({"id", "object", "created", "model", "choices", "usage"})


class HiddenUsage:
    """`feed` it the body of a stream as it comes; it gives what the client is to see, in whole events."""

    __slots__ = ("_last", "_most_bytes", "_partial", "_shows_all")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._most_bytes = _MOST_FIRST_BYTES
        self._last: bytes | None = None
        """The event that ends the output, until another one follows it; empty when one has."""
        self._shows_all = False
        """It is no stream of vLLM's, or the engine gives usages whether one asks or not."""

    @property
    def gives_whole(self) -> bool:
        """Whether what it gave so far ends with a whole event."""
        return not self._shows_all

    def feed(self, data: bytes) -> bytes:
        """The events that are whole now, without the usage's."""
        if self._shows_all:
            return data
        if self._partial or not data.endswith(SEPARATOR):
            data = self._whole(data)
        if data:
            self._most_bytes = _MOST_BYTES
        if self._last is None and FINISHED not in data and b'"usage"' not in data:
            return data
        if not data.endswith(SEPARATOR):
            return data
        shown = b"".join(map(self._shown, data.split(SEPARATOR)[:-1]))
        return shown + self.close() if self._shows_all else shown

    def close(self) -> bytes:
        """The stream has ended: what was kept."""
        rest = (self._last or b"") + self._partial
        self._last = b""
        self._partial.clear()
        return rest

    def _whole(self, data: bytes) -> bytes:
        """The events that are whole; what follows is kept. Each byte is looked at once."""
        partial, before = self._partial, len(self._partial)
        partial += data
        end = partial.rfind(SEPARATOR, max(0, before - len(SEPARATOR) + 1)) + len(SEPARATOR)
        if end >= len(SEPARATOR):
            whole = bytes(partial[:end])
            del partial[:end]
            return whole
        ends_otherwise = _OTHER_SEPARATOR in partial[max(0, before - len(_OTHER_SEPARATOR) + 1) :]
        if ends_otherwise or len(partial) > self._most_bytes:
            self._shows_all = True
            return self.close()
        return b""

    def _shown(self, event: bytes) -> bytes:
        """What is to be seen once this event is there."""
        if self._shows_all:
            return event + SEPARATOR
        last = self._last or b""
        if _USAGE.search(event) is not None:
            if NO_CHOICES.search(event) is not None:
                self._last = b""
                return _with_the_rest_of(event, last) if last else b""
            self._shows_all, self._last = True, b""
            return last + event + SEPARATOR
        if self._last is None and FINISHED in event:
            self._last = event + SEPARATOR
            return b""
        if last:
            self._last = b""
        return last + event + SEPARATOR


def _with_the_rest_of(usage: bytes, last: bytes) -> bytes:
    """The last event, with what stands in the usage's beside it."""
    try:
        document = openai_body.load(usage.removeprefix(b"data:"))
    except (ValueError, RecursionError):
        return last
    rest = (
        {name: value for name, value in document.items() if name not in _OF_USAGE} if isinstance(document, dict) else {}
    )
    end = last.rfind(b"}")
    if not rest or end < 0:  # an engine that talks garbage is passed on as it is
        return last
    return b"%b,%b%b" % (last[:end], openai_body.dump(rest)[1:-1], last[end:])
