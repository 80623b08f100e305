"""How long an honest engine may be silent, by what is believed of its speed.

Signs of life are those of the engine as a whole: a byte of any leg on it. So one request that is preempted, that waits
for its KV or for its turn, or whose prompt is long means nothing as long as others there get their tokens:

- With decodes past their first token, each step brings a token: the next one is expected after one step, which may
  be filled up to the token budget with a prompt that is prefilled there, or computed again after a preemption.
- Where only prefills are owed, one prompt ends at the latest after the time of the longest: engines serve in order.
- Where only first tokens of handed-off requests are owed, their KV is pulled first, or computed if that fails.

A silence that ended by itself and was longer than expected shows that these beliefs are wrong there (hardware that is
not what its profile says, or not known at all). From then on the expectation is that much longer (`Slowness`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief

_MOST_SLOWNESS = 8.0
_SLOWNESS_HALF_LIFE_S = 600.0
_CHUNKS_AFTER_PULLS = 1.5
"""A request whose pull failed is computed by the decode endpoint: so many chunks are granted for that, and no more,
because requests that wait for their first token are there nearly always and failed pulls are rare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What an endpoint has to do, as far as we know."""

    decodes: int = 0
    """Requests of ours past their first token."""
    opening: int = 0
    """Handed-off requests of ours without a token."""
    prefills: int = 0
    foreign: int = 0
    """Requests of others."""
    context_tokens: int = 0
    """Prompts and outputs so far of all decodes."""
    uncached_tokens: int = 0
    """Of the prefills."""
    longest_tokens: int = 0
    """The longest prompt of all requests there."""
    preempts: bool = False
    """Its KV cache is nearly full: requests may be preempted, and computed again."""


@dataclass(frozen=True, slots=True)
class Silence:
    """An expectation, in seconds: within `steps_s` something comes, but for `beside_s` that may come on top."""

    steps_s: float
    beside_s: float = 0.0


class Silences:
    """Expected silences of endpoints, by slot. Pure arithmetic over `beliefs`."""

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        self._learns_steps = Belief.STEP_TIMES in beliefs.kinds

    def expected(self, slot: int, owed: Owed) -> Silence:
        """The longest silence that is expected of an honest engine."""
        if owed.decodes:
            return self._between_steps(slot, owed)
        alone_s = self._prefill_alone_s(slot, owed.longest_tokens) if owed.prefills or owed.opening else 0.0
        if owed.prefills:
            return Silence(alone_s * (1 + owed.foreign))
        return Silence(self._pulls_s(slot, owed) + alone_s)

    def _decode_step_s(self, slot: int, decodes: int, context_tokens: int) -> float:
        """A step without a prefill."""
        slots = np.array([slot], np.int64)
        book = self._beliefs.step_times if self._learns_steps else None
        loads = np.array([decodes], np.float64), np.array([context_tokens], np.float64)
        if book is not None:
            return float(book.predict_s(slots, *loads)[0])
        return float(self._beliefs.hardware.decode_step_s(slots, *loads)[0])

    def prefills_s(self, slot: int, tokens: int) -> float:
        """Prompts of so many tokens together, if they were one."""
        return self._prefill_alone_s(slot, tokens)

    def _between_steps(self, slot: int, owed: Owed) -> Silence:
        decodes = owed.decodes + owed.opening + owed.foreign
        step_s = self._decode_step_s(slot, decodes, owed.context_tokens)
        if owed.prefills or owed.preempts or owed.foreign:
            tokens = owed.longest_tokens if owed.preempts or owed.foreign else owed.uncached_tokens
            return Silence(step_s + self._chunk_s(slot, tokens, owed.longest_tokens))
        if owed.opening:
            return Silence(step_s, _CHUNKS_AFTER_PULLS * self._chunk_s(slot, owed.longest_tokens, owed.longest_tokens))
        return Silence(step_s)

    def _chunk_s(self, slot: int, tokens: int, context_tokens: int) -> float:
        """What a chunk of at most so many tokens adds to a step; `context_tokens`: with those before it."""
        hardware, slots = self._beliefs.hardware, np.array([slot], np.int64)
        chunk = np.minimum(hardware.token_budget(slots), float(max(tokens, 1)))
        pairs = chunk * np.maximum(context_tokens - chunk / 2, chunk / 2)
        seconds = hardware.prefill_step_s(slots, chunk) + hardware.pair_s(slots) * pairs
        return float(seconds[0]) * self._beliefs.prefill_times.factor(slot)

    def _prefill_alone_s(self, slot: int, tokens: int) -> float:
        alone_s = self._beliefs.hardware.prefill_alone_s(slot, float(tokens), 0.0)
        return alone_s * self._beliefs.prefill_times.factor(slot)

    def _pulls_s(self, slot: int, owed: Owed) -> float:
        hardware, slots = self._beliefs.hardware, np.array([slot], np.int64)
        one_s = hardware.link_setup_s(slots) + hardware.link_token_s(slots) * owed.longest_tokens
        return float(one_s[0]) * owed.opening


class Slowness:
    """How many times longer than expected the silences of one endpoint were: the most of late, and 1 at least."""

    __slots__ = ("_at_s", "_ratio")

    def __init__(self) -> None:
        self._ratio = 1.0
        self._at_s = 0.0

    def ratio(self, now_s: float) -> float:
        """The factor to apply to expectations; what was learned fades with a half-life of ten minutes."""
        faded: float = 1.0 + (self._ratio - 1.0) * 0.5 ** (max(now_s - self._at_s, 0.0) / _SLOWNESS_HALF_LIFE_S)
        return faded

    def ended(self, silent_s: float, expected: Silence, now_s: float) -> None:
        """A silence ended by itself."""
        over = max(silent_s - expected.beside_s, 0.0) / max(expected.steps_s, 1e-9)
        ratio = min(over, _MOST_SLOWNESS)
        if ratio > self.ratio(now_s):
            self._ratio, self._at_s = ratio, now_s
