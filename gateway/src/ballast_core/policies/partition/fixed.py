"""Cuts that do not depend on load: baselines for partitions that do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ballast_core.beliefs.kinds import Belief
from ballast_core.model.segments import Segment
from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.partition.base import expected_output_tokens, least_loaded, trace
from ballast_core.policies.partition.protocol import Plan, Planner
from ballast_core.state.book import Book
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same cut for every request: at the end of its prompt, or after a share of all its tokens.

    The endpoint with the fewest prompt tokens to compute takes the first part. Of the others, the one with the fewest
    tokens in flight takes the second. Ties for the first part go to fewer tokens, all other ties by turns. At the end
    of the prompt this is plain disaggregation over flexible endpoints; a share of 0 or 1 leaves requests whole.
    Example: 300 prompt tokens, 100 to come, ratio 0.85 -> the first 340 on one endpoint, the rest on the other.
    """

    type: ClassVar[str] = "fixed"
    at: Literal["prompt", "ratio"] = parameter("prompt", "Where to cut: at the end of the prompt, or after `ratio`.")
    ratio: float = parameter(0.5, "Share of prompt and expected output on the first endpoint, 0 to 1.")
    margin_tokens: int = parameter(20, "Tokens added to every predicted output length, 0 to 1000000.")

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio: must be 0 to 1, not {self.ratio!r}")
        check_within(self, margin_tokens=(0, 1_000_000))

    @property
    def needs(self) -> Belief:
        return Belief.NONE if self.at == "prompt" else Belief.LENGTHS

    def planner(self) -> Planner:
        """Itself: it keeps no results."""
        return self

    def plan(self, view: View, book: Book) -> Plan | None:
        if not view.endpoints:
            return None
        # One number that orders by prompt tokens still to compute, then by all tokens.
        loads = view.tokens.astype(float)
        queued = view.uncached_tokens * (1.0 + loads.max()) + loads
        first = int(least_loaded(view, book, queued, 1)[0])
        chosen = [first, *(int(index) for index in least_loaded(view, book, loads, 2) if index != first)][:2]
        traces = tuple(trace(self.type, view, loads, index) for index in chosen)
        prompt = view.request.prompt_tokens
        length = prompt + expected_output_tokens(view, self.margin_tokens)
        position = prompt if self.at == "prompt" else math.ceil(self.ratio * length)
        if len(chosen) < 2 or not 0 < position < length:
            return Plan((Segment(view.endpoints[chosen[0]], None),), length, traces=traces[:1])
        one, other = (view.endpoints[index] for index in chosen)
        return Plan((Segment(one, position), Segment(other, None)), length, traces=traces)
