"""What an agent sees of engines: the metrics of its own, and signs of life of all that owe it something."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

from ballast_core.model import EndpointId
from ballast_gateway.agent.face import AgentFace
from ballast_gateway.http.client import UpstreamError
from ballast_gateway.observe.exposition import MOST_BYTES, BadExposition, read_page
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.messages import Engine, Signs, counted, counted_ever, measured

_log = logging.getLogger(__name__)

SCRAPE_S: Final = 0.25
SIGNS_S: Final = 0.2
_TIMEOUT_S: Final = 5.0


class Watching:
    """Tells those who listen; rests while nobody does."""

    def __init__(self, face: AgentFace, feed: Feed, *, engine: str) -> None:
        """`engine`: its address on the loopback."""
        self._face = face
        self._feed = feed
        self._engine = engine
        self._problem = ""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        self._tasks = [asyncio.create_task(work) for work in (self._scrape(), self._tell_signs())]

    async def close(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _scrape(self) -> None:
        last: Engine | None = None
        while True:
            await asyncio.sleep(SCRAPE_S)
            if self._feed.readers and (found := await self._gauges()) is not None and found != last:
                last = found
                self._feed.say(found)

    async def _gauges(self) -> Engine | None:
        problem = ""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reply = await self._face.pool.get(
                    self._engine, "/metrics", timeout_s=_TIMEOUT_S, limit_bytes=MOST_BYTES
                )
            gauges = await read_page(reply.body) if reply.status == 200 else None
            problem = "" if gauges is not None else f"/metrics answered {reply.status}"
        except TimeoutError:
            problem, gauges = f"no answer within {_TIMEOUT_S:g} s", None
        except (UpstreamError, BadExposition) as error:
            problem, gauges = str(error), None
        if problem and not self._problem:
            _log.warning("a scrape of the engine failed", extra={"problem": problem})
        self._problem = problem
        if gauges is None:
            return None
        return Engine(
            endpoint=self._face.places.name,
            running=counted(gauges.running),
            waiting=counted(gauges.waiting),
            kv_usage_ratio=measured(gauges.kv_usage_ratio),
            preemptions=counted_ever(gauges.preemptions),
        )

    async def _tell_signs(self) -> None:
        loop = asyncio.get_running_loop()
        signs = self._face.life_signs
        due_s = loop.time() + SIGNS_S
        while True:
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            now_s = loop.time()
            if now_s - due_s > SIGNS_S / 2:
                signs.forgive(now_s - due_s)  # the loop stood still: what came meanwhile could not be read
            due_s = now_s + SIGNS_S
            owing: dict[str, tuple[int, float | None, float]] = {
                each.endpoint_id: (each.legs, _since(each.heard_s, now_s), round(now_s - each.owing_since_s, 3))
                for each in signs.told(0.0, self._known())
                if each.legs
            }
            if owing:
                self._feed.say(Signs(engines=owing))

    def _known(self) -> set[EndpointId]:
        """Endpoints whose signs are kept also while nothing is due there."""
        places = self._face.places.ids()
        for held in self._face.held.values():
            choosing = held.ticket.choosing
            places.add(EndpointId(choosing.decode.id))
            if choosing.prefill is not None:
                places.add(EndpointId(choosing.prefill.id))
        return places


def _since(heard_s: float, now_s: float) -> float | None:
    return None if math.isinf(heard_s) else round(now_s - heard_s, 3)
