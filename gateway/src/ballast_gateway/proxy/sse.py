"""Watches a stream of server-sent events go by: when the first token is there, and how many tokens there are.

The bytes themselves are forwarded as they come. vLLM sends one event a token (`--stream-interval 1`), so counting
the blank lines between events counts tokens; JSON never holds a raw newline. A `usage` in the stream is more exact
and wins. Only the events up to the first token are parsed.
"""

from __future__ import annotations

import json
import re

from ballast_gateway.proxy.events import has_error, is_aborted

_USAGE = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,15})')
NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_CR_SEPARATOR = b"\r\n\r\n"
_DONE = b"data: [DONE]"
MOST_TOKENS = 2**20
"""What one choice has at most, where a request sets no limit: more than any model generates."""
_MAX_PARTIAL_BYTES = 1024 * 1024
"""Of an event that is longer than this only the end is looked at."""


class TokenMeter:
    """Feed it the body of a stream as it comes."""

    __slots__ = (
        *("_done", "_events", "_most_tokens", "_of_one", "_partial", "_separator", "_usage"),
        *("failed", "started"),
    )

    def __init__(self, most_tokens: int = MOST_TOKENS, *, choices: int = 1) -> None:
        """`most_tokens`: more than this a usage does not count, whatever the engine says. `choices`: of several, each
        usage beside a choice is that choice's (`continuous_usage_stats`); of all is the one beside none."""
        self._most_tokens = most_tokens
        self._of_one = choices == 1
        self.started = False
        """The first token is there."""
        self.failed = False
        """The engine has sent an error event, or aborted the request. What came with it is not counted."""
        self._done = False
        self._events = 0
        self._usage: int | None = None
        self._partial = bytearray()
        self._separator = b"\n\n"

    @property
    def tokens(self) -> int:
        """Tokens so far: those of the stream's usage, else one for each event from the first token on."""
        return self._events if self._usage is None else self._usage

    @property
    def is_whole(self) -> bool:
        """Whether it may end here: [DONE] came last, perhaps without a blank line after it."""
        return self._done if not self._partial else self._partial.strip() == _DONE

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more: [DONE] was the last event."""
        return self._done and not self._partial

    @property
    def between_events(self) -> bool:
        """Whether the stream so far ends with a whole event."""
        return not self._partial

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the stream, cut anywhere."""
        if self._partial:
            seam = self._partial[1 - len(_CR_SEPARATOR) :] + data
            if self._separator not in seam and (self.started or _CR_SEPARATOR not in seam):
                self._keep(data)
                return
            data = bytes(self._partial) + data
            self._partial.clear()
        end = data.rfind(self._separator)
        if end < 0 and not self.started and _CR_SEPARATOR in data:
            self._separator = _CR_SEPARATOR
            end = data.rfind(self._separator)
        end = end + len(self._separator) if end >= 0 else 0
        self._keep(data[end:])
        if end:
            self._count(data[:end])

    def _keep(self, data: bytes) -> None:
        """The beginning of an event: in place, so that a trickle is not copied anew with every byte."""
        partial = self._partial
        partial += data
        if len(partial) > 2 * _MAX_PARTIAL_BYTES:
            del partial[:-_MAX_PARTIAL_BYTES]

    def _count(self, whole: bytes) -> None:
        if has_error(whole) or is_aborted(whole):
            self.failed = True
            return
        counts = b'"completion_tokens"' in whole and (self._of_one or NO_CHOICES.search(whole))
        if counts and (found := _USAGE.findall(whole)):
            self._usage = min(int(found[-1]), max(self._most_tokens, self._events))
        self._done = _DONE in whole and whole.rstrip().endswith(_DONE)
        if self.started:
            self._events += whole.count(self._separator) - self._done
            return
        for number, event in enumerate(events := whole.split(self._separator)[:-1]):
            if has_token(event):
                self.started = True
                self._events = sum(1 for later in events[number:] if not later.endswith(_DONE))
                return


def has_token(event: bytes) -> bool:
    """Whether an event brings output: text, token ids, reasoning or a tool call; a bare role or a comment does not."""
    payload = b"".join(line[5:] for line in event.splitlines() if line.startswith(b"data:")).strip()
    if not payload.startswith(b"{"):
        return False
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return False
    choices = document.get("choices")
    return isinstance(choices, list) and any(_brings_output(choice) for choice in choices)


def _brings_output(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    if choice.get("text") or choice.get("token_ids") or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for key, value in delta.items() if key != "role")


def completion_tokens(body: bytes) -> int:
    """The output tokens in the `usage` of a whole answer; 0 without one."""
    found = _USAGE.findall(body)
    return int(found[-1]) if found else 0
