"""What one endpoint is asked for of a request that was cut (Libra's micro-requests), in the terms of vLLM's API.

A leg whose segment ends within the prompt is asked for one token, which no client gets, and holds its KV. A leg that
decodes up to a cut is asked for as many tokens as lie before it and holds its KV; the last of them has none yet and is
computed by the next leg. A leg after the first pulls what the one before has held and computes the rest of its prompt
(`bidirectional_kv_xfer` on the reading side).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ballast_core.model import Endpoint
from ballast_core.model.segments import Segment


@dataclass(frozen=True, slots=True)
class Leg:
    """One segment as an engine is asked for it."""

    input_tokens: int
    pull_tokens: int
    """Leading tokens whose KV the leg before holds; 0 of a first leg."""
    max_tokens: int
    stop_after: int | None
    """Where the output ends by itself, if that is before the cut."""
    hold: bool
    decodes: bool
    """Whether its tokens are the client's."""


@dataclass(slots=True)
class Split:
    """The segments of one request, and which of them runs."""

    segments: tuple[Segment, ...]
    at: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError where the cuts do not rise, or the last segment has an end."""
        ends = [segment.end_tokens for segment in self.segments]
        cuts = [end for end in ends[:-1] if end is not None]
        rising = all(first < second for first, second in pairwise(cuts))
        if not ends or ends[-1] is not None or len(cuts) < len(ends) - 1 or not rising or min(cuts, default=1) < 1:
            raise ValueError(f"segments: ends must rise from 1 on and only the last one be open, not {ends}")

    @property
    def is_last(self) -> bool:
        """Whether no other segment follows."""
        return self.at + 1 == len(self.segments)

    @property
    def segment(self) -> Segment:
        """The one that runs."""
        return self.segments[self.at]

    @property
    def before(self) -> Segment | None:
        """The one whose KV it pulls."""
        return self.segments[self.at - 1] if self.at else None

    def go_on(self, endpoint: Endpoint) -> bool:
        """The next segment's turn; whether it runs where it was planned."""
        self.at += 1
        planned = self.segment
        moved = replace(planned, endpoint=endpoint)
        self.segments = (*self.segments[: self.at], moved, *self.segments[self.at + 1 :])
        return planned.endpoint.id == endpoint.id


def leg_of(
    segments: Sequence[Segment], at: int, *, prompt_tokens: int, output_tokens: int, limit_tokens: int | None = None
) -> Leg:
    """The leg of one segment. `output_tokens`: all that the request will generate, which only the engine knows.

    `limit_tokens`: its max_tokens; a leg that ends the request by this limit is not asked to hold anything.
    """
    start, end = (segments[at - 1].end_tokens or 0 if at else 0), segments[at].end_tokens
    generated = max(start - prompt_tokens, 0)
    if end is not None and end <= prompt_tokens:
        return Leg(end, start, 1, None, hold=True, decodes=False)
    to_come = output_tokens - generated
    computed = start - 1 if generated else start  # the last token before a cut has no KV yet
    if end is None:
        return Leg(prompt_tokens + generated, computed, to_come, None, hold=False, decodes=True)
    wanted = end - prompt_tokens - generated
    limited = limit_tokens is not None and limit_tokens <= generated + wanted
    return Leg(
        prompt_tokens + generated,
        computed,
        min(wanted, to_come) if limited else wanted,
        to_come if to_come <= wanted else None,
        hold=not limited,
        decodes=True,
    )
