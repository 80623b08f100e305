"""Asks all gateways what they have learned of engines, round after round, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from ballast_api import names
from ballast_api.profile_report import ProfilesReport, of_gateways
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.gateways.asking import NoAnswer, asker
from ballast_operator.gateways.board import Name
from ballast_operator.gateways.gateway_pods import GatewayPod, gateway_pods
from ballast_operator.kinds import POD, Kind, Manifest
from ballast_operator.profiles.learned import Taught
from ballast_operator.profiles.lessons import Lessons

logger = logging.getLogger(__name__)

ROUND_S: Final = 60.0
"""Seconds from the beginning of one round to that of the next: what is learned changes in minutes."""
_SELECTOR: Final = f"{names.APP_MANAGED_BY}={names.MANAGER},{names.APP_COMPONENT}=gateway"


class Lists(Protocol):
    """What is needed of the API server."""

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of one kind; of all namespaces without one. Raises `ApiFailure`."""
        ...


class Learner:
    """`start` it, and `stop` it at the end. `changed` is called in its thread, with each HardwareProfile whose status
    has something new to say."""

    def __init__(
        self,
        api: Lists,
        lessons: Lessons,
        changed: Callable[[str], None],
        *,
        namespaces: tuple[str, ...] = (),
        round_s: float = ROUND_S,
        admin_port: int = names.PORT_ADMIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespaces`: those that are served; empty: all."""
        self._api = api
        self._lessons = lessons
        self._changed = changed
        self._namespaces = namespaces
        self._round_s = round_s
        self._admin_port = admin_port
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learn", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, when those that are asked have answered or had their time."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def learn(self) -> None:
        """One round. Raises `ApiFailure`. A gateway that does not answer counts for nothing: what was learned stays."""
        followed = self._lessons.followed()
        if not followed:
            return
        pods = gateway_pods(self._listed(followed), self._admin_port)
        asked = [(name, of, pod) for name, of in followed.items() for pod in pods.get(name, ())]
        reports: defaultdict[Name, list[ProfilesReport]] = defaultdict(list)
        for (name, _, _), answer in zip(asked, asyncio.run(_reports(asked)), strict=True):
            if isinstance(answer, ProfilesReport):
                reports[name].append(answer)
            elif not isinstance(answer, NoAnswer):
                raise answer
        news: set[str] = set()
        for name, of in followed.items():
            news |= self._lessons.answered(name, of.uid, of_gateways(reports[name]), self._clock())
        for profile in sorted(news):
            self._changed(profile)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self.learn()
            except ApiFailure as error:
                logger.warning("gateways are not asked for learned profiles: %s; trying again", error)
            except Exception:
                logger.exception("gateways are not asked for learned profiles: unexpected error; trying again")
            self._stopping.wait(max(0.0, began_s + self._round_s - time.monotonic()))

    def _listed(self, followed: Iterable[Name]) -> Iterator[Manifest]:
        served: Iterable[str | None] = self._namespaces or (None,)
        if len({namespace for namespace, _ in followed}) == 1:
            served = {namespace for namespace, _ in followed}
        for namespace in served:
            yield from self._api.list(POD, namespace, labels=_SELECTOR)


async def _reports(asked: Sequence[tuple[Name, Taught, GatewayPod]]) -> list[ProfilesReport | BaseException]:
    async with asker() as ask:
        asking = [ask.profiles(pod.address, of.token) for _, of, pod in asked]
        return await asyncio.gather(*asking, return_exceptions=True)
