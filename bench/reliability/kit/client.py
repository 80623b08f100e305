"""A client that checks each answer against its text, and says what became of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import httptools

from bench.reliability.kit.asking import Ask


class Fate(StrEnum):
    """What became of a request."""

    WHOLE = "whole"
    """Every token, once and in order, and a proper end."""
    REFUSED = "refused"
    """Another status than 200, in full."""
    BROKEN = "broken"
    """Cut off, with an error event or without; or no answer at all. What came is right."""
    WRONG = "wrong"
    """Tokens lost, doubled or foreign; or an end, a usage or an id that does not fit."""
    GARBLED = "garbled"
    """Whole, but for bytes in between that are no event of it."""
    STUCK = "stuck"
    """No end within the bound."""
    LEFT = "left"
    """The client itself went away."""


@dataclass(slots=True)
class Outcome:
    """One request and what became of it. Times are the loop's."""

    ask: Ask
    request_id: str
    asked_s: float
    fate: Fate = Fate.STUCK
    status: int = 0
    reason: str = ""
    """In words: the error, the reason header, what is wrong."""
    retry_after_s: int | None = None
    """What a refusal says of coming back."""
    first_s: float | None = None
    """When the first token came."""
    last_s: float = 0.0
    ended_s: float = 0.0
    pause_s: float = 0.0
    """The longest time without a token, from the first one on."""
    paused_at_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """From the request to its first token."""
        return None if self.first_s is None else self.first_s - self.asked_s

    def token(self, now_s: float) -> None:
        """A token has come."""
        if self.first_s is None:
            self.first_s = now_s
        elif now_s - self.last_s > self.pause_s:
            self.pause_s, self.paused_at_s = now_s - self.last_s, self.last_s
        self.last_s = now_s


class _Connection(asyncio.Protocol):
    """Asks once, reads the answer, and checks it."""

    def __init__(self, outcome: Outcome, payload: bytes) -> None:
        self.outcome = outcome
        self._payload = payload
        self.over = asyncio.Event()
        self.bug: BaseException | None = None
        """What went wrong in this client itself."""
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self._body: list[bytes] = []
        self._said: list[str] = []
        self._ends: list[str] = []
        self._ids: set[str] = set()
        self._usage: dict[str, Any] | None = None
        self._done = self._roles = 0
        self._error = self._garbage = ""
        self._events = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._payload)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self.bug = error.__context__ or error
            self._finish(Fate.WRONG, "a fault of the client")
        except httptools.HttpParserError as error:
            self._finish(Fate.WRONG, f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.is_set():
            status = self.outcome.status
            self._end(self._error or ("cut off" if status else "hung up without an answer"))

    # --- httptools --------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-ballast-reason":
            self.outcome.reason = value.decode()
        elif name.lower() == b"retry-after":
            self.outcome.retry_after_s = int(value)
        elif name.lower() == b"content-type":
            self._events = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.outcome.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._events:
            self._body.append(data)
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        now_s = self._loop.time()
        for event in events:
            self._event(event, now_s)

    def on_message_complete(self) -> None:
        self._end("")

    # --- checks -----------------------------------------------------------------------------------------------------

    def _event(self, event: bytes, now_s: float) -> None:
        if event == b"data: [DONE]":
            self._done += 1
            return
        try:
            value = json.loads(event.removeprefix(b"data: "))
            if "error" in value:
                self._error = str(value["error"].get("code") or value["error"].get("message"))
                return
            said = [(choice, choice.get("delta") or {}) for choice in value["choices"]]
            text = "".join(choice.get("text") or delta.get("content") or "" for choice, delta in said)
            self._check_id(value["id"], text)
            self._usage = value.get("usage") or self._usage
            self._roles += sum(bool(delta.get("role")) for _, delta in said)
            self._ends += [choice["finish_reason"] for choice, _ in said if choice["finish_reason"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._garbage = f"not an event ({error!r}): {event[:80]!r}"
            return
        if text:
            self._said.append(text)
            self.outcome.token(now_s)

    def _check_id(self, id_: str, text: str) -> None:
        if text or not self._ids:
            self._ids.add(id_)
        elif id_ not in self._ids:
            raise ValueError(f"an event of {id_}")

    def _end(self, cut: str) -> None:
        """The answer is whole, or was cut off, for this reason."""
        outcome, ask = self.outcome, self.outcome.ask
        if outcome.status == 0:
            self._finish(Fate.BROKEN, cut)
        elif outcome.status != 200:
            self._finish(Fate.BROKEN if cut else Fate.REFUSED, cut or outcome.reason)
        elif not ask.stream:
            self._finish(*self._judge_whole(cut))
        else:
            self._finish(*self._judge_stream(cut))

    def _judge_stream(self, cut: str) -> tuple[Fate, str]:
        ask, said = self.outcome.ask, "".join(self._said)
        if not ask.text.startswith(said):
            return Fate.WRONG, "lost, doubled or foreign tokens"
        if len(self._ids) > 1 or self._roles > 1:
            return Fate.WRONG, "it is two streams in one"
        if self._error or cut:
            return Fate.BROKEN, self._error or cut
        if said != ask.text:
            return Fate.WRONG, f"ends after {len(self._said)} tokens as if whole"
        if self._done != 1 or len(self._ends) != 1 or self._rest or self._roles != ask.chat:
            return Fate.WRONG, f"{self._done} [DONE], ends {self._ends}, {self._roles} roles, rest {self._rest[:80]!r}"
        fate, reason = self._judge_usage(self._usage, asked=ask.call.include_usage)
        return (Fate.GARBLED, self._garbage) if fate is Fate.WHOLE and self._garbage else (fate, reason)

    def _judge_whole(self, cut: str) -> tuple[Fate, str]:
        ask = self.outcome.ask
        if cut:
            return Fate.BROKEN, cut
        try:
            document = json.loads(b"".join(self._body))
            choice = document["choices"][0]
            said = choice["message"]["content"] if ask.chat else choice["text"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            return Fate.WRONG, f"not an answer: {error!r}"
        self.outcome.token(self._loop.time())
        if said != ask.text or not choice["finish_reason"]:
            return Fate.WRONG, "lost, doubled or foreign tokens"
        return self._judge_usage(document.get("usage"), asked=True)

    def _judge_usage(self, usage: dict[str, Any] | None, *, asked: bool) -> tuple[Fate, str]:
        ask = self.outcome.ask
        due = {"prompt_tokens": len(ask.call.tokens), "completion_tokens": ask.output_tokens}
        found = {name: (usage or {}).get(name) for name in due}
        if asked and found != due:
            return Fate.WRONG, f"usage {found}, and should be {due}"
        return (Fate.WRONG, "usage that nobody asked for") if usage and not asked else (Fate.WHOLE, "")

    def _finish(self, fate: Fate, reason: str) -> None:
        if self.over.is_set():
            return
        self.outcome.fate, self.outcome.reason = fate, reason or self.outcome.reason
        self.outcome.ended_s = self._loop.time()
        self.over.set()
        self._transport.abort()


async def send(
    port: int, ask: Ask, request_id: str, *, bound_s: float, leave_after_s: float | None = None, host: str = "127.0.0.1"
) -> Outcome:
    """Ask once on a connection of its own. It is stuck after `bound_s`; the client may leave before its end."""
    loop = asyncio.get_running_loop()
    payload = ask.raw(request_id)
    outcome = Outcome(ask, request_id, loop.time())
    try:
        transport, connection = await loop.create_connection(lambda: _Connection(outcome, payload), host, port)
    except OSError as error:
        outcome.fate, outcome.reason, outcome.ended_s = Fate.BROKEN, f"no connection: {error.strerror}", loop.time()
        return outcome
    try:
        async with asyncio.timeout(bound_s if leave_after_s is None else leave_after_s):
            await connection.over.wait()
    except TimeoutError:
        outcome.ended_s = loop.time()
        outcome.fate = Fate.STUCK if leave_after_s is None else Fate.LEFT
        outcome.reason = "no end within the bound" if leave_after_s is None else "left"
        connection.over.set()
    finally:
        transport.abort()
    if connection.bug is not None:
        raise connection.bug
    return outcome


async def at_rate(port: int, asks: list[Ask], rps: float, *, bound_s: float, name: str = "r") -> list[Outcome]:
    """Ask at even times, and wait for all ends."""

    async def one(number: int) -> Outcome:
        await asyncio.sleep(number / rps)
        return await send(port, asks[number], f"{name}-{number}", bound_s=bound_s)

    return list(await asyncio.gather(*map(one, range(len(asks)))))
