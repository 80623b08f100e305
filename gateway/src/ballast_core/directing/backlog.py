"""The work that waits in the gateway: whose it is, how fast it is dispatched, and who is shed if it is too much.

Work is counted in tokens: a request's prompt, and its output as far as that can be expected (its limit, or the mean
output of completed requests if that is less). Only its proportions matter, as the rate is measured in the same tokens.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from ballast_core.model import Request, RequestId

_MEMORY_S = 4.0
"""Seconds of waiting after which a measurement's weight has fallen to 1/e."""
_PRIOR_S = 1.0
"""Weight of the rate that endpoints' profiles promise."""
_MEAN_OVER = 100
"""Completed requests over which the mean output is taken."""
_FIRST_MEAN_TOKENS = 0.0
"""Before any request has completed, work is prompts alone: the promised rate is one of prefills, too."""


@dataclass(slots=True)
class _Level:
    """The waiting requests of one priority, by tenant and age."""

    works: dict[str, dict[RequestId, int]] = field(default_factory=dict)
    """By tenant; newest last."""
    sums: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    """The sum of all."""
    largest: list[tuple[int, str]] = field(default_factory=list)
    """(- sum, tenant), a heap. Sums that have grown are pushed; others are put right when they reach the top."""

    def add(self, tenant: str, request_id: RequestId, work: int) -> None:
        self.works.setdefault(tenant, {})[request_id] = work
        self.sums[tenant] = self.sums.get(tenant, 0) + work
        self.tokens += work
        if len(self.largest) > 2 * len(self.sums) + 64:
            self.largest = [(-total, each) for each, total in self.sums.items()]
            heapq.heapify(self.largest)
        else:
            heapq.heappush(self.largest, (-self.sums[tenant], tenant))

    def remove(self, tenant: str, request_id: RequestId) -> int:
        """Remove a request; returns its work, 0 if it is not here."""
        works = self.works.get(tenant)
        work = None if works is None else works.pop(request_id, None)
        if works is None or work is None:
            return 0
        self.sums[tenant] -= work
        self.tokens -= work
        if not works:
            del self.works[tenant], self.sums[tenant]
        return work

    def last(self) -> tuple[RequestId, int]:
        """The newest request of the tenant with the most work, and its work. Some request must wait."""
        while True:
            negative, tenant = self.largest[0]
            total = self.sums.get(tenant)
            if total == -negative:
                works = self.works[tenant]
                newest = next(reversed(works))
                return newest, works[newest]
            if total is None:
                heapq.heappop(self.largest)
            else:
                heapq.heapreplace(self.largest, (-total, tenant))


class Backlog:
    """The waiting work of one gateway. Times are seconds on the Director's clock."""

    def __init__(self) -> None:
        self.tokens = 0
        """All work that waits."""
        self.held_tokens = 0
        """Of it, that of requests that came while no endpoint was there."""
        self._held: dict[RequestId, int] = {}
        self._levels: dict[int, _Level] = {}
        self._mean_output_tokens = _FIRST_MEAN_TOKENS
        self._measured_tokens = 0.0
        self._measured_s = 0.0
        self._now_s = -math.inf
        """Up to when time has been counted."""
        self._since_s = -math.inf
        """Since when work has waited without a break."""

    # --- work ---------------------------------------------------------------------------------------------------

    def work(self, request: Request) -> int:
        """Tokens of a request, 1 or more."""
        output_tokens, limit = self._mean_output_tokens, request.max_output_tokens
        return max(1, request.prompt_tokens + int(output_tokens if limit is None else min(limit, output_tokens)))

    def completed(self, output_tokens: int) -> None:
        """A request completed with this many output tokens; 0 if that is not known."""
        if output_tokens > 0:
            self._mean_output_tokens += (output_tokens - self._mean_output_tokens) / _MEAN_OVER

    def add(self, request: Request, work: int, now_s: float, *, held: bool = False) -> None:
        """A request that may be shed begins to wait; `held`: no endpoint is there."""
        if held:
            self.held_tokens += work
            self._held[request.id] = work
        self.passes(now_s)
        if not self.tokens:
            self._since_s = self._now_s
        self.tokens += work
        self._levels.setdefault(request.priority, _Level()).add(request.tenant, request.id, work)

    def remove(self, request: Request) -> None:
        """It waits no longer, if it did."""
        self.held_tokens -= self._held.pop(request.id, 0)
        level = self._levels.get(request.priority)
        if level is not None:
            self.tokens -= level.remove(request.tenant, request.id)
            if not level.works:
                del self._levels[request.priority]

    def is_held(self, request: Request) -> bool:
        """Whether it came while no endpoint was there, and waits since then."""
        return request.id in self._held

    def ahead(self, request: Request) -> int:
        """Tokens of work that go before the newest request of its tenant and priority, at most.

        All that is more urgent, and all of its tenant's. Tenants of its priority take turns, so each of the others goes
        before it with as much as its own tenant has waiting, itself included, and no more.
        """
        level = self._levels.get(request.priority)
        if level is None or request.tenant not in level.sums:
            return 0
        own = level.sums[request.tenant]
        others = min(level.tokens - own, (len(level.sums) - 1) * own)
        urgent = sum(each.tokens for priority, each in self._levels.items() if priority < request.priority)
        return urgent + others + own - level.works[request.tenant].get(request.id, 0)

    def last(self) -> tuple[RequestId, int] | None:
        """Who is shed first, and its work: of the least urgent requests, the newest of the tenant with the most work.

        None if none waits.
        """
        return self._levels[max(self._levels)].last() if self._levels else None

    # --- time ---------------------------------------------------------------------------------------------------

    def passes(self, now_s: float) -> None:
        """Count the time up to now, if work waited."""
        if now_s > self._now_s:
            if self.tokens:
                seconds = now_s - self._now_s
                kept = math.exp(-seconds / _MEMORY_S)
                self._measured_tokens *= kept
                self._measured_s = kept * self._measured_s + seconds
            self._now_s = now_s

    def stands(self, now_s: float) -> None:
        """The time up to now says nothing of the rate, and counts as no waiting: no endpoint was there."""
        self._now_s = self._since_s = max(self._now_s, now_s)

    def dispatched(self, work: int) -> None:
        """Waiting work was dispatched."""
        self._measured_tokens += work

    def rate(self, promised_tokens_per_s: float) -> float:
        """Tokens per second that are dispatched while work waits; `promised_tokens_per_s` before any measurement."""
        return max((self._measured_tokens + _PRIOR_S * promised_tokens_per_s) / (self._measured_s + _PRIOR_S), 1e-3)

    @property
    def stood_s(self) -> float:
        """How long work has waited without a break; 0 if none waits."""
        return self._now_s - self._since_s if self.tokens else 0.0

    def wait_s(self, promised_tokens_per_s: float) -> float:
        """Expected seconds until all waiting work is dispatched."""
        return self.tokens / self.rate(promised_tokens_per_s) if self.tokens else 0.0
