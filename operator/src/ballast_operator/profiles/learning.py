"""Asks all gateways what they have learned of engines."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from ballast_api import names
from ballast_api.profile_report import ProfilesReport, of_gateways
from ballast_operator.gateways.asking import NoAnswer, asker
from ballast_operator.gateways.board import Name
from ballast_operator.gateways.gateway_pods import GatewayPod, gateway_pods
from ballast_operator.gateways.listing import GATEWAYS, Lists, listed
from ballast_operator.gateways.rounds import Rounds, every
from ballast_operator.profiles.learned import Taught
from ballast_operator.profiles.lessons import Lessons

ROUND_S: Final = 60.0
"""Seconds from the beginning of one round to that of the next: what is learned changes in minutes."""
NEW_S: Final = 2.0
"""The same of those that have not been asked yet, which are not scaled before."""


class Learner:
    """Calls `changed`, in the thread of its rounds, with each HardwareProfile whose status has something new to say."""

    def __init__(
        self,
        api: Lists,
        lessons: Lessons,
        changed: Callable[[str], None],
        *,
        namespaces: tuple[str, ...] = (),
        admin_port: int = names.PORT_ADMIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespaces`: those that are served; empty: all."""
        self._api = api
        self._lessons = lessons
        self._changed = changed
        self._namespaces = namespaces
        self._admin_port = admin_port
        self._clock = clock
        self._round_s = ROUND_S
        self._full_s = -math.inf
        """When all are due again."""

    def rounds(self, round_s: float = ROUND_S) -> Rounds:
        """To make them again and again."""
        self._round_s = round_s
        without = "gateways are not asked for learned profiles"
        return Rounds("learn", self._make_round, due_s=every(min(NEW_S, round_s)), without=without)

    def _make_round(self) -> None:
        now_s = self._clock()
        new = now_s < self._full_s
        if not new:
            self._full_s = now_s + self._round_s
        self.learn(new=new)

    def learn(self, *, new: bool = False) -> None:
        """One round; with `new` of those alone that have not been asked yet. Raises `ApiFailure`. A gateway that does
        not answer counts for nothing: what was learned stays."""
        followed = self._lessons.followed()
        if new:
            unasked = self._lessons.unasked()
            followed = {name: of for name, of in followed.items() if name in unasked}
        if not followed:
            return
        pods = gateway_pods(listed(self._api, followed, self._namespaces, GATEWAYS), self._admin_port)
        asked = [(name, of, pod) for name, of in followed.items() for pod in pods.get(name, ())]
        reports: defaultdict[Name, list[ProfilesReport]] = defaultdict(list)
        unforeseen: list[BaseException] = []
        for (name, _, _), answer in zip(asked, asyncio.run(_reports(asked)), strict=True):
            if isinstance(answer, ProfilesReport):
                reports[name].append(answer)
            elif not isinstance(answer, NoAnswer):
                unforeseen.append(answer)
        news: set[str] = set()
        for name, of in followed.items():
            news |= self._lessons.answered(name, of.uid, of_gateways(reports[name]), self._clock())
        for profile in sorted(news):
            self._changed(profile)
        for error in unforeseen[:1]:  # of one gateway; the others count
            raise error


async def _reports(asked: Sequence[tuple[Name, Taught, GatewayPod]]) -> list[ProfilesReport | BaseException]:
    async with asker() as ask:
        asking = [ask.profiles(pod.address, of.token) for _, of, pod in asked]
        return await asyncio.gather(*asking, return_exceptions=True)
