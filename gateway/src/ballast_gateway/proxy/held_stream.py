"""A stream whose tokens are kept, so that another engine can go on where one stops.

Engines are asked for `return_token_ids`; what the client did not ask for is taken out again. Events are read only as
far as needed (`events`). A stream that looks otherwise than vLLM's is passed on as it is, and never continued.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy import replay
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.events import (
    ABORTED,
    CHOICES,
    DONE,
    FINISHED,
    IDS,
    PROMPT_IDS,
    SEPARATOR,
    USAGE,
    choice_of,
    count,
    has_error,
    is_parsed,
    text_of,
    with_usage,
)

_MAX_PARTIAL_BYTES: Final = 64 * 1024 * 1024
_LOOK_BACK: Final = 16
"""Events that bring no text and may follow the last one that does: a character is of four bytes at most."""
_CHARS_PER_TOKEN: Final = 256
"""More text than this for a token is no token's: an engine that repeats the prompt (vLLM, cut inside a character)."""


@dataclass(slots=True)
class Output:
    """The tokens so far. Ids are bytes, as they stand in JSON between the brackets."""

    prompt: bytes = b""
    output: bytearray = field(default_factory=bytearray)
    """Each id behind a comma: some six bytes a token, where a list of their events would take fifty."""
    tokens: int = 0
    recent: deque[tuple[bytes, bytes]] = field(default_factory=lambda: deque(maxlen=_LOOK_BACK))
    """The last events of this leg: their ids, and the events as a whole."""

    @property
    def ids(self) -> bytes:
        """Prompt and output."""
        return self.prompt + self.output

    def add(self, ids: bytes, event: bytes) -> int:
        """Keep an event's ids, one at least. Returns how many."""
        tokens = ids.count(b",") + 1
        self.tokens += tokens
        self.output += b",%b" % ids
        self.recent.append((ids, event))
        return tokens

    def drop_last(self, number: int) -> None:
        """Forget the last events."""
        for _ in range(number):
            ids, _event = self.recent.pop()
            self.tokens -= count(ids)
            del self.output[-len(ids) - 1 :]

    def beyond_boundary(self) -> int | None:
        """Events after the last one that surely ends with a whole character; None if none surely does.

        vLLM holds text back until its last character is whole, so an event of one token that brings text ends with one.
        """
        for number, (ids, event) in enumerate(reversed(self.recent)):
            text = text_of(event)
            if text:
                one = count(ids) == 1
                return number if one and not text.endswith("\ufffd") else None
        return len(self.recent) if len(self.recent) < _LOOK_BACK else None  # legs begin at a boundary


@dataclass(slots=True)
class Leg:
    """One engine's part of the stream."""

    continues: bool = False
    """It goes on with what the client has seen."""
    earlier_tokens: int = 0
    """Output tokens before it."""
    expected: bytes = b""
    """The ids that its engine was given, until it has confirmed them; empty in the first leg."""
    opening: bool = True
    """No event with a token has come."""
    tokens: int = 0
    """Output tokens in it."""
    partial: bytes = b""
    """The event that has not come to its end."""
    said: bytes = b""
    """The engine's event that was none of a stream's, for a debug log."""
    broken: str = ""
    """Why it can bring no more."""


class HeldStream:
    """The events of one generation, whichever engine they come from: `feed` them, `continuation` asks for more."""

    __slots__ = ("_asked_ids", "_generation", "_head", "_output", "_parsed", "done", "finished", "leg", "lost")

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._asked_ids = generation.document.get("return_token_ids") is True
        self._output = Output()
        self._head = b""
        """What comes before the choices in each event of the first leg."""
        self._parsed = False
        """A parser of reasoning or tools has read the output: its state is the engine's."""
        self.leg = Leg()
        self.lost = False
        """The engine gives no token ids: bytes are passed on as they are, and no other engine can go on."""
        self.finished = False
        """The engine has given the reason why it stopped."""
        self.done = False
        """The stream has come to its very end."""

    @property
    def tokens(self) -> int:
        """Output tokens so far."""
        return self._output.tokens

    @property
    def is_whole(self) -> bool:
        """Whether it may end here."""
        return self.finished or self.done

    @property
    def begun(self) -> bool:
        """Whether the client has been sent an event."""
        return bool(self._head)

    # --- events -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Take in what an engine sent, cut anywhere; returns what the client is to see: whole events.

        Sets `leg.broken` and takes no more where the leg cannot go on.
        """
        leg = self.leg
        if leg.tokens and not leg.partial and not leg.continues and _is_one_token(data):
            return self._take_ids(data)
        if leg.partial:
            data = leg.partial + data
        *whole, leg.partial = data.split(SEPARATOR)
        shown = []
        for event in whole:
            if self.lost:
                shown.append(event)
                continue
            kept = self._event(event)
            if leg.broken:
                leg.partial = b""
                break
            if kept is not None:
                shown.append(kept)
        if self.lost or (not self._head and b"\r\n\r\n" in leg.partial):
            self.lost = True
            shown.append(leg.partial)
            leg.partial = b""
            return SEPARATOR.join(shown)
        if len(leg.partial) > _MAX_PARTIAL_BYTES:
            leg.broken = "an event without an end"
        if not shown:
            return b""
        shown.append(b"")
        return SEPARATOR.join(shown)

    def _event(self, event: bytes) -> bytes | None:
        """What the client sees of an event; None: nothing. Sets `lost` or `leg.broken` where it is of no use."""
        leg = self.leg
        if not event.startswith(b"data: {"):
            if event == DONE:
                self.done = self.finished or leg.tokens > 0
                leg.broken = "" if self.done else "the stream ended without a token"
            return event
        choices = event.find(CHOICES)
        if choices < 0 and has_error(event):
            leg.broken, leg.said = "the engine sent an error event", event
            return None
        if choices < 0:
            leg.said = event
            return self._give_up(event, "an event without choices")
        if ABORTED in event:
            leg.broken = "the engine aborted the request"
            return None
        if leg.opening:
            opening = self._opening(event)
            if self.lost or leg.broken or opening is None:
                return opening
            event = opening
            choices = event.find(CHOICES)
        if not self._head:
            self._head = event[:choices]
        elif leg.continues:
            event = self._head + event[choices:]
            if USAGE in event:
                prompt_tokens = count(self._output.prompt)
                event = with_usage(event, prompt_tokens=prompt_tokens, earlier_tokens=leg.earlier_tokens)
        return self._take_ids(event)

    def _give_up(self, event: bytes, problem: str) -> bytes:
        """An engine that nothing was taken from yet may answer as it likes: its bytes go to the client."""
        self.lost = not self.leg.continues and not self.tokens
        self.leg.broken = "" if self.lost else problem
        return event

    def _opening(self, event: bytes) -> bytes | None:
        """The events up to the first token. In a later leg the role is known, and the prompt must be ours."""
        leg = self.leg
        start = event.find(PROMPT_IDS)
        if start >= 0:
            end = event.index(b"]", start)
            ids = event[start + len(PROMPT_IDS) : end]
            if not self._output.prompt:
                self._output.prompt = ids
            elif ids == leg.expected:
                leg.expected = b""
            else:
                leg.broken = "the engine went on from other tokens than it was given"
                return None
            if not self._asked_ids or leg.continues:
                event = event[: start + len(PROMPT_IDS) - 1] + b"null" + event[end + 1 :]
        if IDS not in event and FINISHED not in event:
            if self._generation.chat and b'"role":' in event:
                return None if leg.continues else event
            return self._give_up(event, "the engine gives no token ids")
        leg.opening = False
        if leg.expected:
            leg.broken = "the engine does not say which tokens it went on from"
        elif leg.continues and _repeats_prompt(event):
            leg.broken = "the engine repeats the prompt"
        return event

    def _take_ids(self, event: bytes) -> bytes:
        start = event.find(IDS)
        if start >= 0:
            first = start + len(IDS)
            end = event.index(b"]", first)
            ids = event[first:end]
            if ids:
                self.leg.tokens += self._output.add(ids, event)
            if not self._asked_ids:
                event = event[: first - 1] + b"null" + event[end + 1 :]
        if FINISHED in event:
            self.finished = True
        elif self._generation.chat and (b'"reasoning' in event or b'"tool_calls"' in event):
            self._parsed = self._parsed or is_parsed(event)
        return event

    # --- going on elsewhere -----------------------------------------------------------------------------------------

    @property
    def may_go_on(self) -> bool:
        """Whether another engine could produce what is still to come, but for where the text is cut."""
        if self.lost or self.finished or self._parsed or not self._output.prompt:
            return False
        return replay.tokens_left(self._generation, self.tokens) > 0

    def at_boundary(self) -> bool:
        """Whether the text so far ends with a whole character, so that the next engine begins with one."""
        return self._output.beyond_boundary() == 0

    def rewind(self) -> bool:
        """Go back over tokens that brought no text, which end in the midst of a character. False where that cannot be.

        A client that asked for token ids has seen theirs.
        """
        beyond = self._output.beyond_boundary()
        if beyond is None or (beyond and self._asked_ids):
            return False
        self._output.drop_last(beyond)
        return True

    def begin_leg(self) -> None:
        """What is fed from now on comes from another engine; once the stream has begun, asked by `continuation`."""
        output = self._output
        output.recent.clear()
        self.leg = Leg(True, output.tokens, output.ids) if self.begun else Leg()

    def ids(self) -> list[int]:
        """Prompt and output so far."""
        return [int(number) for number in self._output.ids.split(b",")]

    def first_body(self, raw: bytes) -> bytes:
        """The body of the first leg, with token ids asked for."""
        return replay.first_body(raw)

    def continuation(self, handle: JsonObject | None = None) -> bytes:
        """Ask for the rest, as a stream; with the handle of an engine that holds the KV of exactly these tokens."""
        return replay.continuation(self._generation, self._output.ids, self.tokens, handle)

    def prefill(self, *, hold: bool) -> bytes:
        """Ask for one token, not streamed: computes the KV of all so far, to `hold` for a decode engine or to cache."""
        return replay.prefill(self._generation, self._output.ids, hold=hold)

    def confirms(self, reply: bytes, ids: int) -> bool:
        """Whether the answer to `prefill` is about this prompt, when it and the output were so many tokens."""
        confirmed = replay.confirmed_ids(self._generation, reply)
        return confirmed is not None and len(confirmed) == ids and confirmed == self.ids()[:ids]

    def is_covered_by(self, handle: JsonObject | None, reply: bytes) -> bool:
        """Whether a handle is for exactly these tokens: vLLM does not look, and dies or errs if it is not."""
        ids = count(self._output.ids)
        return handle is not None and handle.get("remote_num_tokens") == ids and self.confirms(reply, ids)


def _is_one_token(data: bytes) -> bool:
    """The usual read in the midst of a stream: one whole event of the usual form, not the last one."""
    return (
        data.startswith(b"data: {")
        and data.find(SEPARATOR) == len(data) - len(SEPARATOR)
        and CHOICES in data
        and FINISHED not in data
    )


def _repeats_prompt(event: bytes) -> bool:
    tokens = len(choice_of(event).get("token_ids") or ())
    return len(text_of(event)) > _CHARS_PER_TOKEN * max(1, tokens)
