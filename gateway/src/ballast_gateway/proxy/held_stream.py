"""A stream whose tokens are kept, so that another engine can go on where one stops.

Engines are asked for `return_token_ids`; what the client did not ask for is taken out again. Events are read only as
far as needed, and byte by byte: keys of JSON are looked for with their quotes, which inside of a text are escaped.
vLLM writes JSON without blanks and `choices` after the fields that all events of a stream share; a stream that looks
otherwise is passed on as it is, and never continued.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Final

from ballast_gateway import openai_body
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.bodies import ASK_FOR_HANDLE, Generation
from ballast_gateway.proxy.replayable import COMPLETION_TOKENS, OUTPUT_TOKENS_ARG

_SEPARATOR: Final = b"\n\n"
_DONE: Final = b"data: [DONE]"
_CHOICES: Final = b'"choices":['
_IDS: Final = b'"token_ids":['
_PROMPT_IDS: Final = b'"prompt_token_ids":['
_FINISHED: Final = b'"finish_reason":"'
_ABORTED: Final = b'"finish_reason":"abort"'
_PROMPT_TOKENS: Final = re.compile(rb'"prompt_tokens":\d+')
_COMPLETION_TOKENS: Final = re.compile(rb'"completion_tokens":(\d+)')
_CACHED_TOKENS: Final = re.compile(rb'"cached_tokens":(\d+)')
_MAX_PARTIAL_BYTES: Final = 64 * 1024 * 1024
_LOOK_BACK: Final = 16
"""Events that bring no text and may follow the last one that does: a character is of four bytes at most."""
_CHARS_PER_TOKEN: Final = 256
"""More text than this for a token is no token's: an engine that repeats the prompt (vLLM, cut inside a character)."""


class HeldStream:
    """The events of one generation, whichever engine they come from: `feed` them, `continuation` asks for more.

    A leg is one engine's part; `begin_leg` before each.
    """

    __slots__ = (
        "_asked_ids",
        "_chat",
        "_document",
        "_earlier_tokens",
        "_expected",
        "_first_of_leg",
        "_head",
        "_later",
        "_output",
        "_partial",
        "_prompt",
        "_reasons",
        "_recent",
        "broken",
        "done",
        "finished",
        "leg_tokens",
        "lost",
        "tokens",
    )

    def __init__(self, generation: Generation) -> None:
        self._document = generation.document
        self._chat = generation.chat
        self._asked_ids = generation.document.get("return_token_ids") is True
        self._prompt = b""
        """Ids as they stand in JSON, between the brackets; so is the output, event by event."""
        self._output: list[bytes] = []
        self._recent: deque[bytes] = deque(maxlen=_LOOK_BACK)
        self._partial = b""
        self._head = b""
        """What comes before the choices in each event of the first leg."""
        self._expected = b""
        """The ids that the engine of this leg was given, until it has confirmed them; empty in the first leg."""
        self._first_of_leg = True
        self._later = False
        """Whether this leg continues another one."""
        self._earlier_tokens = 0
        self._reasons = False
        self.tokens = 0
        """Output tokens so far."""
        self.leg_tokens = 0
        """Those of this leg."""
        self.lost = False
        """The engine gives no token ids: bytes are passed on as they are, and nobody else can go on."""
        self.finished = False
        """The engine has said why it stopped."""
        self.done = False
        """The stream has come to its very end."""
        self.broken = ""
        """Why this leg can bring no more."""

    @property
    def is_whole(self) -> bool:
        """Whether it may end here."""
        return self.finished or self.done

    @property
    def begun(self) -> bool:
        """Whether the client has been sent an event."""
        return bool(self._head)

    def first_body(self, raw: bytes) -> bytes:
        """The body of the first leg, with token ids asked for."""
        return b'%b,"return_token_ids":true}' % raw[: raw.rindex(b"}")]

    # --- events -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Take in what an engine sent, cut anywhere, and give what the client is to see: whole events.

        Sets `broken` and takes no more where the leg cannot go on.
        """
        if self._partial:
            data = self._partial + data
        *events, self._partial = data.split(_SEPARATOR)
        shown = []
        for event in events:
            if self.lost:
                shown.append(event)
                continue
            kept = self._event(event)
            if self.broken:
                self._partial = b""
                break
            if kept is not None:
                shown.append(kept)
        if self.lost or (not self.begun and b"\r\n\r\n" in self._partial):
            self.lost = True
            shown.append(self._partial)
            self._partial = b""
            return _SEPARATOR.join(shown)
        if len(self._partial) > _MAX_PARTIAL_BYTES:
            self.broken = "an event without an end"
        if not shown:
            return b""
        shown.append(b"")
        return _SEPARATOR.join(shown)

    def _event(self, event: bytes) -> bytes | None:
        """What the client sees of an event; None: nothing. Sets `lost` or `broken` where it is of no use."""
        if not event.startswith(b"data: {"):
            self.done = self.done or event == _DONE
            return event
        at = event.find(_CHOICES)
        if at < 0:
            return self._give_up(event, f"an event without choices: {event[6:206].decode(errors='replace')}")
        if _ABORTED in event:
            self.broken = "the engine aborted the request"
            return None
        if self._first_of_leg:
            opening = self._opening(event)
            if self.lost or self.broken or opening is None:
                return opening
            event = opening
            at = event.find(_CHOICES)
        if not self._head:
            self._head = event[:at]
        elif self._later:
            event = self._head + event[at:]
            if b'"usage":{' in event:
                event = self._with_true_usage(event)
        return self._take_ids(event)

    def _give_up(self, event: bytes, problem: str) -> bytes:
        """An engine that nothing was taken from yet may answer as it likes: its bytes go to the client."""
        self.lost = not self._later and not self.tokens
        self.broken = "" if self.lost else problem
        return event

    def _opening(self, event: bytes) -> bytes | None:
        """The events up to the first token. In a later leg the role is known, and the prompt must be ours."""
        at = event.find(_PROMPT_IDS)
        if at >= 0:
            end = event.index(b"]", at)
            ids = event[at + len(_PROMPT_IDS) : end]
            if not self._prompt:
                self._prompt = ids
            elif ids == self._expected:
                self._expected = b""
            else:
                self.broken = "the engine went on from other tokens than it was given"
                return None
            if not self._asked_ids or self._later:
                event = event[: at + len(_PROMPT_IDS) - 1] + b"null" + event[end + 1 :]
        if _IDS not in event and _FINISHED not in event:
            if self._chat and b'"role":' in event:
                return None if self._later else event
            return self._give_up(event, "the engine gives no token ids")
        self._first_of_leg = False
        if self._expected:
            self.broken = "the engine does not say which tokens it went on from"
        elif self._later and len(_text_of(event)) > _CHARS_PER_TOKEN * max(
            1, len(_choice_of(event)["token_ids"] or ())
        ):
            self.broken = "the engine repeats the prompt"
        return event

    def _take_ids(self, event: bytes) -> bytes:
        at = event.find(_IDS)
        if at >= 0:
            first = at + len(_IDS)
            end = event.index(b"]", first)
            ids = event[first:end]
            if ids:
                count = ids.count(b",") + 1
                self.tokens += count
                self.leg_tokens += count
                self._output.append(ids)
                self._recent.append(event)
            if not self._asked_ids:
                event = event[: first - 1] + b"null" + event[end + 1 :]
        if _FINISHED in event:
            self.finished = True
        elif self._chat and (b'"reasoning' in event or b'"tool_calls"' in event):
            self._reasons = self._reasons or _is_parsed(event)
        return event

    def _with_true_usage(self, event: bytes) -> bytes:
        """The engine of a later leg takes the replayed output for prompt."""
        prompt = _count(self._prompt)
        event = _PROMPT_TOKENS.sub(b'"prompt_tokens":%d' % prompt, event)
        event = _CACHED_TOKENS.sub(lambda found: b'"cached_tokens":%d' % min(prompt, int(found[1])), event)
        earlier = self._earlier_tokens
        return _COMPLETION_TOKENS.sub(lambda found: b'"completion_tokens":%d' % (int(found[1]) + earlier), event)

    # --- going on elsewhere -----------------------------------------------------------------------------------------

    @property
    def may_go_on(self) -> bool:
        """Whether another engine could produce what is still to come, but for where the text is cut."""
        return not (self.lost or self.finished or self._reasons) and bool(self._prompt) and self._left() > 0

    def at_boundary(self) -> bool:
        """Whether the text so far ends with a whole character, so that the next engine begins with one."""
        return self._beyond_boundary() == 0

    def rewind(self) -> bool:
        """Go back over tokens that brought no text, which end in the midst of a character. False where that cannot be.

        Who asked for token ids has seen theirs.
        """
        events = self._beyond_boundary()
        if events is None or (events and self._asked_ids):
            return False
        for _ in range(events):
            self.tokens -= _count(self._output.pop())
            self._recent.pop()
        return True

    def _beyond_boundary(self) -> int | None:
        """Events after the last one that surely ends with a whole character; None if none surely does.

        vLLM holds text back until its last character is whole, so an event of one token that brings text ends with one.
        """
        recent = self._recent
        for number, event in enumerate(reversed(recent)):
            text = _text_of(event)
            if text:
                one = _count(self._output[-1 - number]) == 1
                return number if one and not text.endswith("\ufffd") else None
        return len(recent) if len(recent) < _LOOK_BACK else None  # legs begin at a boundary

    def begin_leg(self) -> None:
        """What is fed from now on comes from another engine; once the stream has begun, asked by `continuation`."""
        self._later = self.begun
        self._expected = self._ids() if self.begun else b""
        self._partial, self.broken = b"", ""
        self._first_of_leg = True
        self._earlier_tokens = self.tokens
        self.leg_tokens = 0
        self._recent.clear()

    def _ids(self) -> bytes:
        return b",".join([self._prompt, *self._output])

    def _left(self) -> int:
        """Output tokens that the client's limits leave; a large number where it sets none."""
        document = self._document
        limits = [document.get("max_tokens"), document.get("max_completion_tokens")]
        if not self._chat:
            limits = [document.get("max_tokens", COMPLETION_TOKENS)]
        limits.append((document.get("vllm_xargs") or {}).get(OUTPUT_TOKENS_ARG))
        return min([limit for limit in limits if limit is not None], default=2**31) - self.tokens

    def ids(self) -> list[int]:
        """Prompt and output so far."""
        return [int(number) for number in self._ids().split(b",")]

    def continuation(self, handle: JsonObject | None = None) -> bytes:
        """Ask for the rest, as a stream; with the handle of an engine that holds the KV of exactly these tokens."""
        done = self.tokens
        document = {key: value for key, value in self._document.items() if key != "prompt"}
        if not self._chat:
            document.setdefault("max_tokens", COMPLETION_TOKENS)
        for field in ("max_tokens", "max_completion_tokens"):
            if document.get(field) is not None:
                document[field] = max(1, document[field] - done)
        if document.get("min_tokens"):
            document["min_tokens"] = max(0, document["min_tokens"] - done)
        if document.get("vllm_xargs"):
            document["vllm_xargs"] = {name: max(1, n - done) for name, n in document["vllm_xargs"].items()}
        return self._with_ids(document | {"return_token_ids": True}, handle)

    def prefill(self, *, hold: bool) -> bytes:
        """Ask for one token, not streamed: computes the KV of all so far, to `hold` for a decode engine or to cache."""
        dropped = {"prompt", "stream", "stream_options", "min_tokens", "max_completion_tokens", "vllm_xargs"}
        document = {key: value for key, value in self._document.items() if key not in dropped}
        document |= {"max_tokens": 1, "stream": False, "return_token_ids": True}
        return self._with_ids(document, ASK_FOR_HANDLE if hold else None)

    def _with_ids(self, document: JsonObject, transfer: JsonObject | None) -> bytes:
        ids = self._ids()
        if self._chat:
            more = openai_body.dump(transfer)[:-1] + b"," if transfer else b"{"
            tail = b'"kv_transfer_params":%b"prompt_token_ids":[%b]}}' % (more, ids)
        else:
            tail = b'"prompt":[%b]' % ids
            tail += b',"kv_transfer_params":%b}' % openai_body.dump(transfer) if transfer else b"}"
        return openai_body.dump(document)[:-1] + b"," + tail

    def confirms(self, reply: bytes, ids: int) -> bool:
        """Whether the answer to `prefill` is about this prompt, when it and the output were so many tokens."""
        try:
            document = json.loads(reply)
            said = document["prompt_token_ids"] if self._chat else document["choices"][0]["prompt_token_ids"]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return False
        return isinstance(said, list) and len(said) == ids and said == self.ids()[:ids]

    def is_covered_by(self, handle: JsonObject | None, reply: bytes) -> bool:
        """Whether a handle is for exactly these tokens: vLLM does not look, and dies or errs if it is not."""
        ids = _count(self._ids())
        return handle is not None and handle.get("remote_num_tokens") == ids and self.confirms(reply, ids)


def _count(ids: bytes) -> int:
    return ids.count(b",") + 1 if ids else 0


def _text_of(event: bytes) -> str:
    choice = _choice_of(event)
    text = choice.get("text") or (choice.get("delta") or {}).get("content")
    return text if isinstance(text, str) else ""


def _is_parsed(event: bytes) -> bool:
    """Whether a parser of reasoning or of tool calls has read the output."""
    delta = _choice_of(event).get("delta") or {}
    return any(delta.get(key) for key in delta if key not in ("role", "content"))


def _choice_of(event: bytes) -> JsonObject:
    try:
        choices = json.loads(event[6:])["choices"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
