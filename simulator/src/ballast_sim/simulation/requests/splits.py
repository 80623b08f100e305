"""The legs of a request that was cut into segments (Libra's micro-requests), in the terms of vLLM's API.

A leg whose segment ends within the prompt is asked for one token, which no client gets, and holds its KV. A leg that
decodes up to a cut is asked for as many tokens as lie before it and holds its KV; the last token has no KV yet and is
computed by the next leg. A leg after the first pulls what the leg before it holds and computes the rest of its prompt
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
    """One segment, as it is asked of an engine."""

    input_tokens: int
    pull_tokens: int
    """Leading tokens whose KV the previous leg holds; 0 for a first leg."""
    max_tokens: int
    stop_after: int | None
    """Output tokens after which the output ends by itself, if that is before the cut."""
    hold: bool
    decodes: bool
    """Whether the client gets its tokens."""


@dataclass(slots=True)
class Split:
    """The segments of one request, and which of them runs."""

    segments: tuple[Segment, ...]
    index: int = 0
    """Of the segment that runs."""

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
        return self.index + 1 == len(self.segments)

    @property
    def segment(self) -> Segment:
        """The segment that runs."""
        return self.segments[self.index]

    @property
    def before(self) -> Segment | None:
        """The previous segment, whose KV it pulls; None for the first."""
        return self.segments[self.index - 1] if self.index else None

    def go_on(self, endpoint: Endpoint) -> bool:
        """Go on to the next segment, at `endpoint`. Returns whether that is the endpoint of the plan."""
        self.index += 1
        planned = self.segment
        moved = replace(planned, endpoint=endpoint)
        self.segments = (*self.segments[: self.index], moved, *self.segments[self.index + 1 :])
        return planned.endpoint.id == endpoint.id


def leg_of(
    segments: Sequence[Segment], index: int, *, prompt_tokens: int, output_tokens: int, limit_tokens: int | None = None
) -> Leg:
    """The leg of one segment. `output_tokens`: all that the request will generate, which only the engine knows.

    `limit_tokens`: its max_tokens; a leg that ends the request by this limit is not asked to hold anything.
    """
    start, end = (segments[index - 1].end_tokens or 0 if index else 0), segments[index].end_tokens
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
