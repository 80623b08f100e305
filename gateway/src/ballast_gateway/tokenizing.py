"""Token ids of text prompts, from the engines' own /tokenize.

Answers are kept, and equal questions in flight are asked once. A request waits for `wait_s` at most; the answer is kept
even if it comes later. When the last answers all came too late, nobody waits until one has come in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from ballast_core.model.prompt_tokens import PromptTokens
from ballast_gateway.http.client import Collect, UpstreamError, UpstreamPool
from ballast_gateway.token_questions import Question

_ANSWER_S: Final = 5.0
"""Seconds until a question is given up."""
_AT_ONCE: Final = 32
"""Questions in flight; further ones are not asked."""
_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Memory of the answers that are kept: five million tokens with their blocks' names at most."""
_MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
_PATIENCE: Final = 3
"""Late answers in a row after which nobody waits."""
_BYTES_PER_TOKEN: Final = 12
"""8 for the token, and its share of the name of its block."""

Done: TypeAlias = Callable[[PromptTokens | None], None]


class _Answer(msgspec.Struct):
    tokens: list[int]


_answers = msgspec.json.Decoder(_Answer)


class Tokenizing:
    """Asks the endpoints at `addresses(model)`, one after another."""

    def __init__(self, pool: UpstreamPool, addresses: Callable[[str], Sequence[str]], *, wait_s: float) -> None:
        self._pool = pool
        self._addresses = addresses
        self._wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._kept: dict[bytes, PromptTokens] = {}
        """The one used last comes last."""
        self._kept_bytes = 0
        self._asking: dict[bytes, _Asking] = {}
        self._late = 0
        self._turn = 0

    def find(self, question: Question, done: Done) -> Waiting | PromptTokens | None:
        """The answer, if it is kept. Otherwise it is asked for, and `done` gets it, or None when it is late or there is
        none; unless the waiting is dropped. None: it is not to be waited for.
        """
        known = self._kept.pop(question.key, None)
        if known is not None:
            self._kept[question.key] = known
            return known if known.cache_salt == question.cache_salt else _salted(known, question.cache_salt)
        asking = self._asking.get(question.key)
        if asking is None:
            asks = len(self._asking) < _AT_ONCE and self._wait_s > 0
            addresses = self._addresses(question.model) if asks else ()
            if not addresses:
                return None
            self._turn += 1
            asking = self._asking[question.key] = _Asking(self, question)
            asking.ask(addresses[self._turn % len(addresses)])
        if self._late >= _PATIENCE or question.key not in self._asking:
            return None
        waiting = Waiting(asking, done, question.cache_salt)
        waiting.timer = self._loop.call_later(self._wait_s, self._too_late, waiting)
        asking.waiting.append(waiting)
        return waiting

    def close(self) -> None:
        """Give all questions up; nobody is told."""
        for asking in list(self._asking.values()):
            for waiting in list(asking.waiting):
                waiting.drop()
            asking.give_up()

    def _too_late(self, waiting: Waiting) -> None:
        self._late += 1
        waiting.asking.waiting.remove(waiting)
        waiting.done(None)

    def request(self, asking: _Asking, address: str) -> None:
        """Send a question. Called by it."""
        body = asking.question.body
        head = f"POST /tokenize HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        payload = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        exchange = asking.exchange = Collect(self._loop.time() + _ANSWER_S, _MOST_ANSWER_BYTES)
        asking.timer = self._loop.call_later(_ANSWER_S, asking.give_up)
        self._pool.start(address, payload, exchange, asking.over)

    def cancel(self, exchange: Collect) -> None:
        """Leave an exchange."""
        self._pool.cancel(exchange)

    def answered(self, asking: _Asking, tokens: PromptTokens | None) -> None:
        """A question has its answer, or will have none. Called by it."""
        del self._asking[asking.question.key]
        if tokens is not None:
            self._keep(asking.question.key, tokens)
            if self._loop.time() - asking.asked_s <= self._wait_s:
                self._late = 0
        for waiting in asking.waiting:
            waiting.drop_timer()
            salted = tokens if tokens is None or not waiting.cache_salt else _salted(tokens, waiting.cache_salt)
            waiting.done(salted)

    def _keep(self, key: bytes, tokens: PromptTokens) -> None:
        size = _BYTES_PER_TOKEN * len(tokens)
        if size > _KEPT_BYTES:
            return
        self._kept[key] = tokens
        self._kept_bytes += size
        while self._kept_bytes > _KEPT_BYTES:
            oldest = next(iter(self._kept))
            self._kept_bytes -= _BYTES_PER_TOKEN * len(self._kept.pop(oldest))


class Waiting:
    """A request that waits for an answer."""

    __slots__ = ("asking", "cache_salt", "done", "timer")

    def __init__(self, asking: _Asking, done: Done, cache_salt: str) -> None:
        self.asking = asking
        self.done = done
        self.cache_salt = cache_salt
        self.timer: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        """It waits no more; `done` is not called."""
        self.drop_timer()
        self.asking.waiting.remove(self)

    def drop_timer(self) -> None:
        """It was answered."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Asking:
    """One question in flight."""

    __slots__ = ("_tokenizing", "asked_s", "exchange", "question", "timer", "waiting")

    def __init__(self, tokenizing: Tokenizing, question: Question) -> None:
        self._tokenizing = tokenizing
        self.question = question
        self.waiting: list[Waiting] = []
        self.exchange: Collect | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.asked_s = asyncio.get_running_loop().time()

    def ask(self, address: str) -> None:
        """Ask the engine there."""
        self._tokenizing.request(self, address)

    def give_up(self) -> None:
        """No answer has come."""
        if self.exchange is not None:
            self._tokenizing.cancel(self.exchange)
        self._end(None)

    def over(self, error: UpstreamError | None) -> None:
        """The exchange has ended. Never raises."""
        exchange = self.exchange
        tokens = None
        if error is None and exchange is not None and exchange.status == 200:
            try:
                tokens = PromptTokens.of(_answers.decode(exchange.body).tokens, model=self.question.model)
            except (msgspec.MsgspecError, OverflowError, TypeError, UnicodeDecodeError):
                tokens = None
        self._end(tokens)

    def _end(self, tokens: PromptTokens | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.exchange = None
        self._tokenizing.answered(self, tokens)


def _salted(tokens: PromptTokens, cache_salt: str) -> PromptTokens:
    """The same tokens under a cache salt of their own."""
    return PromptTokens(tokens.ids, tokens.model, cache_salt)
