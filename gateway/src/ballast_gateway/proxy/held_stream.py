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
    CR_SEPARATOR,
    DONE,
    FINISHED,
    IDS,
    MOST_DIGITS,
    NO_CHOICES,
    NO_DELTA,
    PROMPT_IDS,
    SEPARATOR,
    USAGE,
    are_ids,
    count,
    has_error,
    ids_of,
    is_parsed,
    is_well_formed,
    text_of,
    with_usage,
)

_END: Final = b"}" + SEPARATOR
_MAX_EVENT_BYTES: Final = 1024 * 1024
_ID_BYTES: Final = 8
"""A token id in JSON, with its comma, is no longer (a vocabulary of ten million)."""
_MAX_PROMPT_BYTES: Final = 64 * 1024 * 1024
_LOOK_BACK: Final = 16
"""Events that bring no text and may follow the last one that does: a character is of four bytes at most."""
_MOST_STEPS: Final = 4
"""Tokens that may belong to a character which is not whole yet."""
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
        more = ids.count(b",")
        self.tokens += more
        self.add_one(ids, event)
        return more + 1

    def add_one(self, ids: bytes, event: bytes) -> None:
        """Keep an event's only id."""
        self.tokens += 1
        self.output += b","
        self.output += ids
        self.recent.append((ids, event))

    def drop_last(self, number: int) -> None:
        """Forget the last events."""
        for _ in range(number):
            ids, _event = self.recent.pop()
            self.tokens -= count(ids)
            del self.output[-len(ids) - 1 :]

    def drop_token(self) -> bool:
        """Forget the last token; False if there is none."""
        at = self.output.rfind(b",")
        if at < 0:
            return False
        del self.output[at:]
        self.tokens -= 1
        return True

    def last_ids(self) -> list[int]:
        """Those of the last tokens of output, more than a character takes."""
        return [int(each) for each in self.output.rsplit(b",", _LOOK_BACK)[1:]]

    def is_unsure(self) -> bool:
        """Whether the last event with a text has several tokens: the last of them may have brought none."""
        for ids, event in reversed(self.recent):
            text = text_of(event)
            if text:
                return count(ids) > 1 and not text.endswith("\ufffd")
        return False

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

    def ends_with_sign(self) -> bool:
        """Whether the last event ends with another character than a letter or a digit."""
        return bool(self.recent) and not text_of(self.recent[-1][1])[-1:].isalnum()


@dataclass(slots=True)
class Leg:
    """One engine's part of the stream."""

    continues: bool = False
    """It goes on with what the client has seen."""
    earlier_tokens: int = 0
    """Output tokens before it."""
    expected: bytes = b""
    """The ids that its engine was given, until it has confirmed them; empty in the first leg."""
    head: bytes = b""
    """What comes before the choices in each of its events, as vLLM writes them."""
    opening: bool = True
    """No event with a token has come."""
    tokens: int = 0
    """Output tokens in it."""
    partial: bytearray = field(default_factory=bytearray)
    """The event that has not come to its end."""
    said: bytes = b""
    """The engine's event that was none of a stream's, for a debug log."""
    broken: str = ""
    """Why it can bring no more."""


class HeldStream:
    """The events of one generation, whichever engine they come from: `feed` them, `continuation` asks for more."""

    __slots__ = (
        *("_asked_ids", "_generation", "_head", "_output", "_parsed", "_unseen", "_withheld"),
        *("_stepped", "done", "finished", "leg", "lost", "moves", "unfit", "unsure"),
    )

    def __init__(self, generation: Generation, *, unseen: bool = False) -> None:
        """`unseen`: the client is sent nothing before the end, so that any token may be taken back."""
        self._generation = generation
        self._asked_ids = generation.document.get("return_token_ids") is True
        self._unseen = unseen
        self.unfit = False
        """Unseen alone: what comes is no plain text with its token ids, so it says too little for a whole answer."""
        self.moves = False
        """A move is under way: its holder wants to know where events end."""
        self.start_over()

    def start_over(self) -> None:
        """Forget all that came: the next leg is the first one."""
        self._output = Output()
        self._head = b""
        """What comes before the choices in each event of the first leg."""
        self._parsed = False
        """A parser of reasoning or tools has read the output: its state is the engine's."""
        self._withheld = False
        """The last token of a chat has shown nothing yet, not even an empty text."""
        self.leg = Leg()
        self.unsure = False
        """Where the text so far ends among the last tokens is not known: an engine has to say (`last_ids`)."""
        self._stepped = 0
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
    def prompt_tokens(self) -> int:
        """Tokens of the client's prompt, as the first engine counts them; 0 as long as it has not said."""
        return count(self._output.prompt)

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

        Sets `leg.broken` and takes no more where the leg cannot go on. Whatever the bytes are, it raises nothing, and
        its tokens are those of the events that it returned, now or earlier.
        """
        leg = self.leg
        if leg.tokens and not leg.partial and not leg.continues and (kept := self._one_token(data)) is not None:
            return kept
        if leg.partial and not (data := self._joined(data)):
            return b""
        *whole, partial = data.split(SEPARATOR)
        shown = []
        for event in whole:
            if self.done:
                break
            kept = event if self.lost else self._event(event)
            if leg.broken:
                break
            if kept is not None:
                shown.append(kept)
        else:
            if not self.lost and CR_SEPARATOR in partial:
                self._give_up(partial.partition(CR_SEPARATOR)[0], "its lines end otherwise")
            elif not self.lost and len(partial) > self._limit_bytes:
                leg.broken = "an event without an end"
            if self.lost:
                return SEPARATOR.join([*shown, partial])
            if not leg.broken:
                leg.partial += partial
        if not shown:
            return b""
        shown.append(b"")
        return SEPARATOR.join(shown)

    def _one_token(self, data: bytes) -> bytes | None:
        """What the client sees of the usual read in the midst of a stream: one whole event of the usual form with one
        token, not the last one. None: it is another read.
        """
        leg = self.leg
        start = data.find(IDS)
        first = start + len(IDS)
        end = data.find(b"]", first)
        ids = data[first:end]
        if (
            start < 0
            or end < 0
            or not ids.isdigit()
            or len(ids) > MOST_DIGITS
            or self.finished
            or FINISHED in data
            or data.find(IDS, end) >= 0
            or not data.endswith(_END)
            or data.find(b"\n") != len(data) - len(SEPARATOR)
            or not data.startswith(leg.head)
            or not data.startswith(CHOICES, len(leg.head))
            or (self._generation.chat and (self._withheld or self._may_be_parsed(data)))
        ):
            return None
        leg.tokens += 1
        self._output.add_one(ids, data)
        return data if self._asked_ids else b"%bnull%b" % (data[: first - 1], data[end + 1 :])

    def _joined(self, data: bytes) -> bytes:
        """The event that has not come to its end, and these bytes; nothing if they do not end it either."""
        partial = self.leg.partial
        seam = partial[1 - len(CR_SEPARATOR) :] + data
        if SEPARATOR not in seam and CR_SEPARATOR not in seam and len(partial) + len(data) <= self._limit_bytes:
            partial += data  # in place: a trickle is not copied anew with every byte
            return b""
        data = bytes(partial) + data
        partial.clear()
        return data

    def close(self) -> bytes:
        """The engine's answer is at its end. Returns what the client is to see of an event that nothing else ended."""
        partial = bytes(self.leg.partial)
        return self.feed(SEPARATOR) if partial and is_well_formed(partial) else b""

    @property
    def _limit_bytes(self) -> int:
        """The longest event: the first one of a leg repeats the prompt, a token a byte at most, as ids."""
        if not self.leg.opening:
            return _MAX_EVENT_BYTES
        given = _ID_BYTES * len(self._generation.raw) + len(self.leg.expected)
        return _MAX_EVENT_BYTES + min(given, _MAX_PROMPT_BYTES)

    def _event(self, event: bytes) -> bytes | None:
        """What the client sees of an event; None: nothing. Sets `lost` or `leg.broken` where it is of no use."""
        leg = self.leg
        if not event.startswith(b"data: {"):
            return self._without_data(event)
        choices = event.find(CHOICES)
        if choices < 0 and has_error(event):
            leg.broken, leg.said = "the engine sent an error event", event
            return None
        if choices < 0:
            leg.said = event
            return self._give_up(event, "an event without choices")
        leg.head = leg.head or event[:choices]
        if not event.startswith(leg.head) or not event.endswith(b"}") or b"\n" in event:
            return self._give_up(event, "an event that is none of this stream's")
        if ABORTED in event:
            leg.broken = "the engine aborted the request"
            return None
        if leg.opening:
            opening = self._opening(event)
            if self.lost or leg.broken or opening is None:
                return opening
            event = opening
            choices = event.find(CHOICES)
        if leg.continues:
            event = self._head + event[choices:]
            if USAGE in event:
                prompt_tokens = count(self._output.prompt)
                event = with_usage(event, prompt_tokens=prompt_tokens, earlier_tokens=leg.earlier_tokens)
        kept = self._take_ids(event)
        if kept is not None and not self._head:
            self._head = event[:choices]
        return kept

    def _without_data(self, event: bytes) -> bytes | None:
        """The end of the stream, a comment to keep it alive, or nothing; anything else is not vLLM's."""
        if event == DONE:
            self.done = self.finished or (self.leg.tokens > 0 and not (self._unseen or self.may_go_on))
            if not self.done:
                self.leg.broken = f"the stream ended without a {'reason' if self.leg.tokens else 'token'}"
            return event
        if not event or (event.startswith(b":") and b"\n" not in event):
            return event if self._head else None  # a comment is no reason to begin an answer
        return self._give_up(event, "an event that is not vLLM's")

    def _give_up(self, event: bytes, problem: str) -> bytes | None:
        """An engine that nothing was taken from yet may answer as it likes, if that is in order at all."""
        free = not self.leg.continues and not self.tokens and is_well_formed(event)
        if free and not self._unseen:
            self.lost = True
            return event
        self.unfit = self.unfit or free
        self.leg.broken = problem
        return None

    def _opening(self, event: bytes) -> bytes | None:
        """The events up to the first token. In a later leg the role is known, and the prompt must be ours."""
        leg = self.leg
        start = event.find(PROMPT_IDS)
        if start >= 0:
            end = event.find(b"]", start)
            ids = event[start + len(PROMPT_IDS) : end]
            if end < 0 or not ids or not are_ids(ids):
                return self._give_up(event, "a prompt that is not of token ids")
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

    def _take_ids(self, event: bytes) -> bytes | None:
        """Keep an event's ids, and take them out unless the client asked for them. None where they are none."""
        start = event.find(IDS)
        if start < 0:
            if not (self.leg.opening or FINISHED in event or NO_CHOICES in event):
                return self._give_up(event, "an event without token ids")
        else:
            first = start + len(IDS)
            end = event.find(b"]", first)
            ids = event[first:end]
            if end < 0 or not are_ids(ids) or event.find(IDS, end) >= 0:
                return self._give_up(event, "token ids that are none")
            if ids:
                if self.finished:
                    return self._give_up(event, "tokens after the end")
                self.leg.tokens += self._output.add(ids, event)
            if not self._asked_ids:
                event = event[: first - 1] + b"null" + event[end + 1 :]
        if self._generation.chat and (self._withheld or self._may_be_parsed(event)):
            self._look_for_parser(event)
            if self.unfit:
                self.leg.broken = "a parser has read the output"
                return None
        if FINISHED in event:
            self.finished = True
        return event

    @staticmethod
    def _may_be_parsed(event: bytes) -> bool:
        """Whether it is worth a closer look."""
        return NO_DELTA in event or b'"reasoning' in event or b'"tool_calls"' in event

    def _look_for_parser(self, event: bytes) -> None:
        """One that reasons or calls tools, or that held back what might begin a tag. A character that was not whole is
        held back without one, too, with a blank before it in the same token; it is none of ASCII's.
        """
        if is_parsed(event):
            self._parsed = True
            self.unfit = self._unseen
        elif self._withheld and (text := text_of(event)):
            self._parsed = self._parsed or text.removeprefix(" ")[:1].isascii()
            self._withheld = False
        elif NO_DELTA in event:
            self._withheld = True

    # --- going on elsewhere -----------------------------------------------------------------------------------------

    @property
    def may_go_on(self) -> bool:
        """Whether another engine could produce what is still to come, but for where the text is cut."""
        if self.lost or self.finished or self._parsed or not self._output.prompt:
            return False
        return replay.tokens_left(self._generation, self.tokens) > 0

    def at_boundary(self) -> bool:
        """Whether the text so far ends with a whole character, so that the next engine begins with one.

        In a chat also with a letter or a digit: of a token such as ` <` a parser may show the blank, and hold back what
        may begin a tag. What begins one stands behind no letter of the same token.
        """
        output = self._output
        return output.beyond_boundary() == 0 and not (self._generation.chat and output.ends_with_sign())

    @property
    def may_rewind(self) -> bool:
        """Whether `rewind` can be, or may."""
        beyond = self._output.beyond_boundary()
        if beyond is None:
            return self._output.is_unsure()
        return not (beyond and self._shows_ids)

    @property
    def _shows_ids(self) -> bool:
        """Whether the client has seen the ids of what came."""
        return self._asked_ids and not self._unseen

    def rewind(self) -> bool:
        """Go back over tokens that brought no text, which end in the midst of a character. False where that cannot be.

        A client that asked for token ids has seen theirs. Where several tokens came in one event, the stream is
        `unsure` afterwards.
        """
        if not self.may_rewind:
            return False
        beyond = self._output.beyond_boundary()
        self.unsure, self._stepped = beyond is None, 0
        self._output.drop_last(beyond or 0)
        return True

    def last_ids(self) -> list[int]:
        """Of the last tokens so far. Their text ends as the whole does."""
        return self._output.last_ids()

    def step_back(self) -> bool:
        """Go back over the last token: what comes of it is no whole character. False where that cannot be."""
        self._stepped += 1
        return not self._shows_ids and self._stepped <= _MOST_STEPS and self._output.drop_token()

    def begin_leg(self) -> None:
        """What is fed from now on comes from another engine; once the stream has begun, asked by `continuation`."""
        output = self._output
        if self.begun:
            output.recent.clear()
            self._withheld = self.unsure = False
            self.leg = Leg(True, output.tokens, output.ids)
        else:
            self.start_over()  # what an engine began to say and nobody has seen

    def ids(self) -> list[int]:
        """Prompt and output so far."""
        return [int(number) for number in self._output.ids.split(b",")]

    def prompt_and_output(self) -> tuple[list[int], list[int]]:
        """The two apart."""
        ids, prompt = self.ids(), self.prompt_tokens
        return ids[:prompt], ids[prompt:]

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


def _repeats_prompt(event: bytes) -> bool:
    return len(text_of(event)) > _CHARS_PER_TOKEN * max(1, count(ids_of(event)))
