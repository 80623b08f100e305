"""Libra's search for the cut (sections 4.1 and 4.4, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar, Literal, NamedTuple

from ballast_core.beliefs.kinds import Belief
from ballast_core.model.segments import Segment
from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.partition.base import expected_output_tokens, least_loaded, trace
from ballast_core.policies.partition.forecast import Forecast, Rules, outstanding, pace
from ballast_core.policies.partition.protocol import Plan
from ballast_core.policies.partition.timeline import Part, Timeline
from ballast_core.state.book import Book, Work, works_of
from ballast_core.state.flights import NO_LIMIT
from ballast_core.state.view import View


class Probe(NamedTuple):
    """The predicted completion times of one cut."""

    position: int
    """Tokens of the first part; if it has all tokens, the request stays whole."""
    first_s: float
    """When the endpoint of the first part has finished all its work (T1)."""
    second_s: float
    """The same for the endpoint of the second part (T2)."""

    @property
    def gap_s(self) -> float:
        """|T1 - T2|."""
        return abs(self.first_s - self.second_s)


def search(
    ratio: float, length: int, predict: Callable[[int], Probe], *, max_probes: int, eps_s: float, highest: int
) -> list[Probe]:
    """Lines 3 to 10: the probes of a bounded bisection of the ratio, starting at `ratio`, with positions to `highest`.

    The work of the first endpoint grows with the position. If it finishes last, the cut moves back. The search ends
    with the first probe whose gap is within `eps_s`, or at a position that was probed before.
    """
    probes, low, high = dict[int, Probe](), 0.0, highest / length
    ratio = min(ratio, high)
    for _ in range(max_probes):
        position = min(max(math.ceil(ratio * length - 1e-9), 1), highest, length - 1)
        if position in probes:
            break
        found = probes[position] = predict(position)
        if found.gap_s <= eps_s:
            break
        if found.first_s > found.second_s:
            high = ratio
        else:
            low = ratio
        ratio = (low + high) / 2
    return list(probes.values())


@dataclass(frozen=True, slots=True)
class Libra:
    """The cut with which two endpoints finish all their work at the same time, found by bisection.

    It takes the two flexible endpoints that will finish first, ties by turns. For each order of these two, a share of
    all tokens, at first P / (P + D), goes to the first endpoint and the rest to the second. Virtual batches predict
    when each endpoint finishes all its work (`partition/timeline.py`), and bisection moves the cut until the two times
    differ by at most eps_s. The best probe has the least excess over ttft_slo_s, then the smallest difference, then the
    earliest end of both, then the order that begins on the endpoint that finishes first. A request stays whole if that
    is as good: within eps_s, or if both endpoints are idle (cold start). Requests that may not be cut count as work.
    The time to first token is "the request's SLO" of section 3.2, to which Algorithm 1 gives no form. Without it, an
    endpoint that only prefills gets a queue of prompts as long as others take to finish their decodes.
    With `batches: recent`, prompts are computed in passes like the endpoint's last ones (`beliefs/recent_batches.py`),
    as the paper has it, instead of the profile's largest ones. With `kv_memory`, a part waits until what all active
    parts hold on average fits with it.
    Parts are predicted as if all were ready at once. The second part's wait for the first changes when it is done, but
    not how much work its endpoint has, and the work is what is balanced.
    Example: 1,024 prompt tokens and 1,024 to come, two endpoints with equal work -> a cut beyond the prompt.
    """

    type: ClassVar[str] = "libra"
    max_probes: int = parameter(6, "Cuts to try for each order of the two endpoints (K), 1 to 64.")
    eps_s: float = parameter(0.1, "Difference of completion times in seconds that counts as balanced, 0 or more.")
    max_requests: int = parameter(256, "Requests that an endpoint works on at a time (N_max), 1 to 65536.")
    batches: Literal["profile", "recent"] = parameter(
        "profile", "Prompts of virtual batches: in passes of the profile's token budget, or as in recent passes."
    )
    kv_memory: bool = parameter(False, "Whether parts of virtual batches wait for KV memory.")
    margin_tokens: int = parameter(20, "Tokens added to every predicted output length, 0 to 1000000.")
    ttft_slo_s: float = parameter(1.0, "Time to first token that cuts should meet, in seconds; 0: no such bound.")
    cuts: Literal["any", "prompt"] = parameter(
        "any", "Where to cut: anywhere, or within the prompt and at its end, as clients that stream need it."
    )
    block_tokens: int = parameter(1, "Cuts within the prompt are multiples of this many tokens, 1 to 65536.")
    segments: int = parameter(2, "Parts of a request, 2 or 3: prefill, thinking and answer.")
    think_ratio: float = parameter(0.8, "Share of the output that is thinking if a request has no hint, 0 to 1.")
    think_tbt_slo_s: float = parameter(0.2, "Seconds between tokens that suffice for thinking; for 3 segments.")

    def __post_init__(self) -> None:
        check_within(
            self,
            max_probes=(1, 64),
            max_requests=(1, 65_536),
            margin_tokens=(0, 1_000_000),
            block_tokens=(1, 65_536),
        )
        if self.segments not in {2, 3}:
            raise ValueError(f"segments: must be 2 or 3, not {self.segments!r}")
        for name in ("eps_s", "ttft_slo_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: must be finite and 0 or more, not {getattr(self, name)!r}")
        if not 0 < self.think_ratio < 1:
            raise ValueError(f"think_ratio: must be above 0 and below 1, not {self.think_ratio!r}")
        if not 0 < self.think_tbt_slo_s < math.inf:
            raise ValueError(f"think_tbt_slo_s: must be finite and above 0, not {self.think_tbt_slo_s!r}")
        if self.segments == 3 and self.cuts == "prompt":
            raise ValueError("segments: 3 cut the output, which cuts: prompt rules out")

    @property
    def needs(self) -> Belief:
        """See `Partition`."""
        read = Belief.LENGTHS | Belief.STEP_TIMES | Belief.PREFILL_TIMES | Belief.PREFIXES | Belief.PROGRESS
        return read | Belief.BATCHES if self.batches == "recent" else read

    @property
    def rules(self) -> Rules:
        """Of its virtual batches."""
        return Rules(self.max_requests, self.batches, self.kv_memory)

    def planner(self) -> LibraPlanner:
        """A planner that keeps the endpoints' timelines while they are valid."""
        return LibraPlanner(self)


class LibraPlanner:
    """Plans requests with one set of parameters, and keeps the timeline of each endpoint."""

    def __init__(self, policy: Libra) -> None:
        self._policy = policy
        self.forecast = Forecast()
        """Kept timelines; valid while the book's work for their slots is unchanged."""

    def plan(self, view: View, book: Book) -> Plan | None:
        """The cut of one request; None if the view has no endpoint."""
        return _Planning(self._policy, view, book, self.forecast).plan() if view.endpoints else None


class _Planning:
    """One request's plan."""

    def __init__(self, policy: Libra, view: View, book: Book, forecast: Forecast) -> None:
        self._policy = policy
        self._forecast = forecast
        self._view = view
        self._book = book
        self._prompt = view.request.prompt_tokens
        self._length = self._prompt + expected_output_tokens(view, policy.margin_tokens)
        self._cached = view.matched_tokens
        self._probes = 0

    def plan(self) -> Plan:
        policy, view, book = self._policy, self._view, self._book
        loads = self._forecast.remaining_s(view, book, policy.rules)
        chosen = [int(index) for index in least_loaded(view, book, loads, 3 if policy.segments == 3 else 2)]
        traces = tuple(trace(policy.type, view, loads, index) for index in chosen)
        if len(chosen) == 1 or not any(book.busy(int(view.slots[index])) for index in chosen):
            return Plan((Segment(view.endpoints[chosen[0]], None),), self._length, traces=traces[:1])
        thinking = self._thinking()
        segments, gap_s = self._two(chosen[:2]) if thinking is None else self._three(chosen, thinking)
        used = [segment.endpoint.id for segment in segments]
        return Plan(segments, self._length, self._probes, gap_s, tuple(each for each in traces if each.chosen in used))

    def _two(self, pair: list[int]) -> tuple[tuple[Segment, ...], float]:
        policy = self._policy
        highest = min(self._prompt, self._length - 1) if policy.cuts == "prompt" else self._length - 1
        best: tuple[tuple[float, float, float, int], tuple[Segment, ...], float] | None = None
        for order, (first, second) in enumerate((pair, pair[::-1])):
            whole = self._probe(first, second, self._length)
            found = [whole]
            if highest and whole.gap_s > policy.eps_s:
                found += search(
                    self._prompt / self._length,
                    self._length,
                    partial(self._probe, first, second),
                    max_probes=policy.max_probes,
                    eps_s=policy.eps_s,
                    highest=highest,
                )
            for probe in found:
                is_whole = probe.position == self._length
                balanced = is_whole and probe.gap_s <= policy.eps_s
                key = (
                    self._late_s(first, second, probe.position),
                    0.0 if balanced else probe.gap_s,
                    max(probe.first_s, probe.second_s),
                    2 * order + (not is_whole),
                )
                if best is None or key < best[0]:
                    best = key, self._segments((first, second), (probe.position,)), probe.gap_s
        assert best is not None, "two orders were tried"
        return best[1], best[2]

    def _late_s(self, first: int, second: int, position: int) -> float:
        """Seconds by which the first token is expected to miss its SLO, from the queued prompts and this one."""
        if not self._policy.ttft_slo_s:
            return 0.0
        own_s, until_s = self._view.own_prefill_s, self._view.prefill_s
        share = min(position / max(self._prompt, 1), 1.0)
        first_s = float(until_s[first] - own_s[first] * (1.0 - share))
        if share < 1:
            first_s = max(first_s, float(until_s[second] - own_s[second])) + float(own_s[second]) * (1.0 - share)
        return max(first_s - self._policy.ttft_slo_s, 0.0)

    def _three(self, chosen: list[int], thinking: int) -> tuple[tuple[Segment, ...], float]:
        """Prefill, thinking and answer over the least-loaded endpoints: neighbours differ, completion most even."""
        ways = [way for way in product(chosen, repeat=3) if way[0] != way[1] != way[2]]
        cuts = (self._prompt, self._prompt + thinking)
        best: tuple[tuple[float, float, int], tuple[Segment, ...]] | None = None
        for order, way in enumerate(ways):
            segments = self._segments(way, cuts)
            ends = self._ends(zip(way, self._works(way, segments), strict=True), chosen)
            key = (max(ends) - min(ends), max(ends), order)
            if best is None or key < best[0]:
                best = key, segments
        assert best is not None, "there are two endpoints or more"
        return best[1], best[0][0]

    def _probe(self, first: int, second: int, position: int) -> Probe:
        position = self._aligned(position)
        segments = self._segments((first, second), (position,))
        way = (first, second)[: len(segments)]
        ends = self._ends(zip(way, self._works(way, segments), strict=True), (first, second))
        return Probe(position, ends[0], ends[1])

    def _ends(self, works: Iterable[tuple[int, Work]], indices: Iterable[int]) -> list[float]:
        """When each of these endpoints finishes all its work with `works` added: (endpoint, work)."""
        self._probes += 1
        added: dict[int, list[Part]] = {}
        for index, work in works:
            added.setdefault(index, []).append(Part(work.prefill_tokens, work.decode_tokens, work.context_tokens))
        ends = list[float]()
        for index in indices:
            more = added.get(index, [])
            if len(more) > 1:
                ahead = outstanding(self._view, self._book, index)
                timeline = Timeline([*ahead, *more], pace(self._view, index, self._policy.rules))
            else:
                timeline = self._forecast.timeline(self._view, self._book, index, self._policy.rules)
            ends.append(timeline.end_with_s(*more) if len(more) == 1 else timeline.end_s)
        return ends

    def _segments(self, way: tuple[int, ...], cuts: tuple[int, ...]) -> tuple[Segment, ...]:
        endpoints = [self._view.endpoints[index] for index in way]
        if cuts == (self._length,):
            return (Segment(endpoints[0], None),)
        slos = [self._policy.think_tbt_slo_s if len(way) == 3 and part == 1 else None for part in range(len(way))]
        return tuple(
            Segment(endpoint, end, slo) for endpoint, end, slo in zip(endpoints, (*cuts, None), slos, strict=True)
        )

    def _works(self, way: tuple[int, ...], segments: tuple[Segment, ...]) -> list[Work]:
        return works_of(segments, self._prompt, self._length, int(self._cached[way[0]]))

    def _aligned(self, position: int) -> int:
        """The position as a multiple of the block if it is within the prompt; the prompt's end is always allowed."""
        block = self._policy.block_tokens
        return position if position >= self._prompt else min(max(position // block, 1) * block, self._prompt)

    def _thinking(self) -> int | None:
        """Output tokens of the thinking part; None if the request is not cut in three."""
        if self._policy.segments != 3 or not self._prompt:
            return None
        output = self._length - self._prompt
        hint = self._view.request.expected_thinking_tokens
        share = self._policy.think_ratio * (output - self._policy.margin_tokens)
        thinking = int(share if hint is None else min(hint, NO_LIMIT))
        return thinking if 0 < thinking < output else None
