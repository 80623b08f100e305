"""What an engine's recent passes with prompts were like: prompt tokens a pass, and how long a pass takes.

No engine reports its batches. Two things that we see tell of them. While prompts are computed, a decode gets one token
a pass, so the mean gap between tokens is the mean duration of such a pass. And the prompts that end tell how many
tokens a second are computed meanwhile. Their product is the number of prompt tokens in a pass, whatever rule the engine
batches by: a chunk, a budget that follows an SLO, or decodes that leave no room.

The duration corrects the step-time law at that composition by one factor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_core.profiles import HardwareProfile

_MEMORY_PASSES = 500.0
"""After so many further passes, those before have a weight of 1/e."""
_MEMORY_S = 10.0
"""The same for seconds in which prompts were computed."""
_LEAST_PASSES = 32.0
_MAX_FACTOR = 8.0
_LEAST_SHARE = 1 / 256
"""Of the profile's token budget: passes that had less were short of prompts, and tell nothing of what fits."""


@dataclass(frozen=True, slots=True)
class Composition:
    """A pass with prompts."""

    prompt_tokens: int
    """1 or more."""
    factor: float
    """Real seconds per second of the profile's law at this composition."""


@dataclass(slots=True)
class _Seen:
    """Sums that decay with what is added."""

    passes: float = 0.0
    pass_s: float = 0.0
    decodes: float = 0.0
    """Over passes, and so is their context."""
    context_tokens: float = 0.0
    prompt_s: float = 0.0
    prompt_tokens: float = 0.0
    pairs: float = 0.0


@dataclass(slots=True)
class RecentBatches:
    """By slot."""

    _seen: dict[int, _Seen] = field(default_factory=dict)

    def passed(self, slot: int, passes: float, seconds: float, decodes: float, context_tokens: float) -> None:
        """Gaps between tokens while prompts were computed: so many, over all of them; means of decodes and context."""
        if passes <= 0 or seconds <= 0:
            return
        seen = self._seen.setdefault(slot, _Seen())
        kept = _MEMORY_PASSES / (_MEMORY_PASSES + passes)
        seen.passes = kept * seen.passes + passes
        seen.pass_s = kept * seen.pass_s + seconds
        seen.decodes = kept * seen.decodes + passes * decodes
        seen.context_tokens = kept * seen.context_tokens + passes * context_tokens

    def prefilled(self, slot: int, seconds: float, uncached_tokens: float, cached_tokens: float) -> None:
        """A prompt took so long since the one before it had ended; 0 where both ended in one pass."""
        if seconds < 0 or uncached_tokens <= 0:
            return
        seen = self._seen.setdefault(slot, _Seen())
        kept = _MEMORY_S / (_MEMORY_S + seconds)
        seen.prompt_s = kept * seen.prompt_s + seconds
        seen.prompt_tokens = kept * seen.prompt_tokens + uncached_tokens
        seen.pairs = kept * seen.pairs + uncached_tokens * (cached_tokens + uncached_tokens / 2)

    def composition(self, slot: int, profile: HardwareProfile) -> Composition | None:
        """None until enough passes and a prompt were seen."""
        seen = self._seen.get(slot)
        if seen is None or seen.passes < _LEAST_PASSES or seen.prompt_s <= 0:
            return None
        pass_s, decodes = seen.pass_s / seen.passes, round(seen.decodes / seen.passes)
        most = max(profile.max_num_batched_tokens - decodes, 1)
        least = min(max(int(profile.max_num_batched_tokens * _LEAST_SHARE), 1), most)
        tokens = min(max(round(pass_s * seen.prompt_tokens / seen.prompt_s), least), most)
        law_s = profile.step_s(
            tokens + decodes, seen.context_tokens / seen.passes, tokens * seen.pairs / seen.prompt_tokens, decodes
        )
        return Composition(tokens, min(max(pass_s / law_s, 1 / _MAX_FACTOR), _MAX_FACTOR))

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint, or its hardware another one."""
        self._seen.pop(slot, None)
