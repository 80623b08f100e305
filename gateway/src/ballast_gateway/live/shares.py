"""What the other gateways of the fleet have done themselves, for a page that shows all of them.

They are asked while somebody watches, once a second, over the pod API: signed with the fleet's token, so no admin token
passes on. One that does not answer is left out, and the page says so.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol
from urllib.parse import urlencode

import msgspec

from ballast_gateway.live.frames import encoded
from ballast_gateway.live.rows import Frame
from ballast_gateway.live.taking import Taking
from ballast_gateway.live.together import Together
from ballast_gateway.podapi.messages import SHARE, STORY

EVERY_S: Final = 1.0
"""Between two questions to a gateway."""
FIRST_S: Final = 1.0
"""How long a first frame waits for the others."""
_DECODE: Final = msgspec.json.Decoder(Frame).decode


class Others(Protocol):
    """The other gateways of the fleet."""

    def gateways(self) -> Mapping[str, str]:
        """Those that are heard; their names are the keys."""
        ...

    def peers(self) -> int:
        """How many there are, heard or not."""
        ...

    async def ask(self, gateway: str, target: str) -> bytes | None:
        """The answer of one to a GET; None without one."""
        ...


def answers(taking: Taking) -> dict[str, Callable[[Mapping[str, str]], bytes | None]]:
    """By path, what this gateway tells the others when they ask."""

    def share(query: Mapping[str, str]) -> bytes:
        return encoded(taking.share(_count(query.get("ended", "")), _count(query.get("decided", ""))))

    def story(query: Mapping[str, str]) -> bytes | None:
        told = taking.story(query.get("id", ""))
        return None if told is None else encoded(told)

    return {SHARE: share, STORY: story}


def _count(said: str) -> int:
    return int(said) if said.isdecimal() and len(said) < 19 else 0


class Shares:
    """Frames of all gateways. `others` is None while there is no view of a fleet."""

    def __init__(self, taking: Taking, others: Callable[[], Others | None], *, unit: str = "gateways") -> None:
        self._taking = taking
        self._others = others
        self._unit = unit
        self._shares: dict[str, Frame] = {}
        self._together = Together(unit)
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._asked_s = -math.inf

    async def frame(self, number: int) -> Frame:
        """For those who watch: number 0 begins anew."""
        others = self._others()
        if others is None or not others.peers():
            return self._taking.snapshot(number)
        now_s = asyncio.get_running_loop().time()
        if number == 0:
            self.close()
            self._shares, self._together = {}, Together(self._unit)
        if number == 0 or now_s - self._asked_s >= EVERY_S:
            self._asked_s = now_s
            self._ask(others)
        if number == 0 and self._asking:
            await asyncio.wait(self._asking.values(), timeout=FIRST_S)
        return self._together(self._taking.snapshot(number), self._shares, others.peers() + 1)

    async def snapshot(self) -> Frame:
        """One frame, for somebody who does not stay."""
        alone = Shares(self._taking, self._others, unit=self._unit)
        try:
            return await alone.frame(0)
        finally:
            alone.close()

    async def story(self, request_id: str) -> bytes | None:
        """What the gateway of another's request tells of it."""
        others, (name, _, its_id) = self._others(), request_id.partition("/")
        if others is None or not its_id:
            return None
        return await others.ask(name, f"{STORY}?{urlencode({'id': its_id})}")

    def close(self) -> None:
        """Ask nobody any more."""
        for task in self._asking.values():
            task.cancel()
        self._asking = {}

    def _ask(self, others: Others) -> None:
        """Ask those that are heard and do not owe an answer."""
        heard = others.gateways()
        self._shares = {name: share for name, share in self._shares.items() if name in heard}
        self._asking = {name: task for name, task in self._asking.items() if not task.done()}
        for name in heard:
            if name not in self._asking:
                self._asking[name] = asyncio.create_task(self._take(others, name))

    async def _take(self, others: Others, name: str) -> None:
        before = self._shares.get(name)
        known = {} if before is None else {"ended": before.ended, "decided": before.decided}
        told = await others.ask(name, f"{SHARE}?{urlencode(known)}" if known else SHARE)
        try:
            self._shares[name] = _DECODE(told or b"")
        except msgspec.DecodeError:  # no answer, or that of another version
            self._shares.pop(name, None)
