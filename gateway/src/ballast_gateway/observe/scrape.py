"""Scrapes every member of the fleet, each at its own steady rhythm.

It uses the byte path's client: at five scrapes a second of every endpoint, httpx would cost more processor time than
the requests themselves (0.8 ms each against some 0.05 ms).
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Collection
from typing import Final

from ballast_core.model import EndpointId, Observation
from ballast_gateway.http.client import Collect, Silence, TooLarge, UpstreamError, UpstreamPool
from ballast_gateway.life_signs import LifeSigns
from ballast_gateway.observe import exposition, model_card
from ballast_gateway.observe.exposition import BadExposition, read_page
from ballast_gateway.observe.fleet import Fleet, Member
from ballast_gateway.observe.model_card import UNKNOWN, read_card

_log = logging.getLogger(__name__)
_MAX_AT_ONCE = 64
_ADAPTERS_S = 5.0
_NEW_ADAPTER_S = 1.0
"""How often an engine with adapters is asked for its models."""
RARELY: Final = 4
"""An engine whose agent tells of its metrics as they change is scraped at every so manieth beat only: each gateway that
scrapes costs the engine's API server time. Adapters are seen by scrapes alone, and so is an agent's blind engine."""


class Scraper:
    """Scrapes every member. Call `sync` when members have come or gone; `on_failure` gets each failed scrape.

    Each is asked once for its models, too; one that serves none of `served` is logged.
    """

    def __init__(
        self,
        fleet: Fleet,
        pool: UpstreamPool,
        *,
        interval_s: float,
        timeout_s: float,
        served: Collection[str],
        now_s: Callable[[], float],
        life_signs: LifeSigns,
        on_failure: Callable[[Member], None] = lambda member: None,
        told: Callable[[EndpointId], bool] = lambda endpoint_id: False,
    ) -> None:
        """`told`: whether an agent tells of this engine's metrics now."""
        self._fleet = fleet
        self._pool = pool
        self.use(interval_s=interval_s, timeout_s=timeout_s, served=served)
        self._now_s = now_s
        self._life_signs = life_signs
        self._on_failure = on_failure
        self._told = told
        self._tasks: dict[EndpointId, tuple[Member, asyncio.Task[None]]] = {}
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)

    def use(self, *, interval_s: float, timeout_s: float, served: Collection[str]) -> None:
        """From the next scrapes on."""
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._served = served

    def sync(self) -> None:
        """Scrape exactly the present members."""
        members = self._fleet.members
        for endpoint_id, (member, task) in list(self._tasks.items()):
            if members.get(endpoint_id) is not member:
                task.cancel()
                del self._tasks[endpoint_id]
        for endpoint_id, member in members.items():
            if endpoint_id not in self._tasks:
                self._tasks[endpoint_id] = (member, asyncio.create_task(self._beat(member)))

    async def close(self) -> None:
        """Stop scraping."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _beat(self, member: Member) -> None:
        await self._scrape(member)
        share = zlib.crc32(member.endpoint.id.encode()) / 2**32  # spread out those found together
        next_s = self._now_s() + self._interval_s * share
        left_out = 0
        while True:
            await asyncio.sleep(max(0.0, next_s - self._now_s()))
            if left_out < RARELY - 1 and self._may_be_left_out(member):
                left_out += 1
            else:
                left_out = 0
                await self._scrape(member)
            next_s = max(next_s + self._interval_s, self._now_s())

    def _may_be_left_out(self, member: Member) -> bool:
        """At this beat."""
        return not member.problem and member.adapters is None and self._told(member.endpoint.id)

    async def _scrape(self, member: Member) -> None:
        async with self._slots:
            try:
                await self._look(member)
            except Exception as error:  # ours; whatever it is, the engine is scraped again
                self._failed(member, f"its page could not be taken: {error!r}", fault=error)

    async def _look(self, member: Member) -> None:
        signs, loop = self._life_signs.of(member.endpoint.id), asyncio.get_running_loop()
        signs.asked(loop.time())
        try:
            reply = await self._get(member, "/metrics", exposition.MOST_BYTES)
            signs.answered()
            if reply.status != 200:
                raise UpstreamError(f"/metrics answered {reply.status}")
            gauges = await read_page(reply.body)
            signs.shown(gauges.computed_tokens, loop.time(), runs=gauges.running > 0)
            member.adapters = gauges.adapters
        except asyncio.CancelledError:
            signs.answered()  # nobody asks any more
            raise
        except TimeoutError:
            self._failed(member, f"no answer within {self._timeout_s:g} s")
        except (UpstreamError, BadExposition) as error:
            signs.unseen()
            if not isinstance(error, Silence):
                signs.answered()
            self._failed(member, str(error))
        else:
            seen = Observation(
                observed_at_s=self._now_s(),
                running=gauges.running,
                waiting=gauges.waiting,
                kv_usage_ratio=gauges.kv_usage_ratio,
                preemptions=gauges.preemptions,
            )
            if self._is_to_be_asked(member):
                await self._ask_for_models(member)  # before it gets requests: some may be for other models
            self._fleet.scraped(member, seen)

    async def _get(self, member: Member, path: str, limit_bytes: int) -> Collect:
        """Raises `UpstreamError` and `TimeoutError`."""
        async with asyncio.timeout(self._timeout_s):
            return await self._pool.get(
                member.endpoint.address, path, timeout_s=self._timeout_s, limit_bytes=limit_bytes
            )

    def _is_to_be_asked(self, member: Member) -> bool:
        """Once; where adapters may be loaded and unloaded at run time, again and again, and at once for a new one."""
        if member.card is None or member.adapters is None:
            return member.card is None
        at_work = member.adapters.running | member.adapters.waiting
        due_s = _NEW_ADAPTER_S if at_work - member.card.adapters else _ADAPTERS_S
        return self._now_s() - member.asked_s >= due_s

    async def _ask_for_models(self, member: Member) -> None:
        member.asked_s = self._now_s()
        try:
            reply = await self._get(member, "/v1/models", model_card.MOST_BYTES)
            card = read_card(reply.body, self._served) if reply.status == 200 else UNKNOWN
        except TooLarge:
            card = UNKNOWN
        except (UpstreamError, TimeoutError):
            return  # the next scrape asks again
        again, member.card = member.card is not None, card
        if not again and card.names and not set(card.names) & set(self._served):
            _log.warning(
                "an engine serves other models: it will refuse what it is sent",
                extra={"endpoint": member.endpoint.id, "serves": list(card.names), "served": list(self._served)},
            )

    def _failed(self, member: Member, problem: str, fault: Exception | None = None) -> None:
        if member.liveness.failures == 0:
            extra = {"endpoint": member.endpoint.id, "problem": problem}
            _log.warning("a scrape failed", extra=extra, exc_info=fault)
        self._fleet.scrape_failed(member, problem)
        self._on_failure(member)
