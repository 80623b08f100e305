"""Asks all gateways, round after round, in a thread of its own: kopf's loop and the looks at resources go on meanwhile.

One request to the API server finds the gateway pods of all ServingPools (one for each namespace that is served). A pod
should answer while it is ready; one that ends still counts if it does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from ballast_api import names
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.gateways.asking import asker
from ballast_operator.gateways.board import Board, Name
from ballast_operator.gateways.gateway_pods import GatewayPod, gateway_pods
from ballast_operator.gateways.measured import Answer, Followed, measured
from ballast_operator.kinds import POD, Kind, Manifest

logger = logging.getLogger(__name__)

ROUND_S: Final = 15.0
"""Seconds from the beginning of one round to that of the next."""
_SELECTOR: Final = f"{names.APP_MANAGED_BY}={names.MANAGER},{names.APP_COMPONENT}=gateway"


class Lists(Protocol):
    """What is needed of the API server."""

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """Objects of one kind; of all namespaces without one. Raises `ApiFailure`."""
        ...


class Collector:
    """`start` it, and `stop` it at the end. `changed` is called in its thread, with each ServingPool whose status has
    something new to say."""

    def __init__(
        self,
        api: Lists,
        board: Board,
        changed: Callable[[Name], None],
        *,
        namespaces: tuple[str, ...] = (),
        round_s: float = ROUND_S,
        admin_port: int = names.PORT_ADMIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespaces`: those that are served; empty: all."""
        self._api = api
        self._board = board
        self._changed = changed
        self._namespaces = namespaces
        self._round_s = round_s
        self._admin_port = admin_port
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collect", daemon=True)

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

    def collect(self) -> None:
        """One round. Raises `ApiFailure`."""
        followed = self._board.followed()
        if not followed:
            return
        pods = self._pods(followed)
        asked = [(name, of, pod) for name, of in followed.items() for pod in pods.get(name, ())]
        answers: dict[Name, list[Answer]] = {name: [] for name in followed}
        for (name, _, pod), answer in zip(asked, asyncio.run(_reports(asked)), strict=True):
            if pod.ready or answer.report is not None:
                answers[name].append(answer)
        for name, of in followed.items():
            if self._board.answered(name, of, measured(of.objectives, answers[name]), self._clock()):
                self._changed(name)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self.collect()
            except ApiFailure as error:
                logger.warning("gateways are not asked for their counts: %s; trying again", error)
            except Exception:
                logger.exception("gateways are not asked for their counts: unexpected error; trying again")
            self._stopping.wait(max(0.0, began_s + self._round_s - time.monotonic()))

    def _pods(self, followed: Mapping[Name, Followed]) -> Mapping[Name, list[GatewayPod]]:
        return gateway_pods(self._listed(followed), self._admin_port)

    def _listed(self, followed: Mapping[Name, Followed]) -> Iterator[Manifest]:
        served: Iterable[str | None] = self._namespaces or (None,)
        if len({namespace for namespace, _ in followed}) == 1:
            served = {namespace for namespace, _ in followed}
        for namespace in served:
            yield from self._api.list(POD, namespace, labels=_SELECTOR)


async def _reports(asked: Sequence[tuple[Name, Followed, GatewayPod]]) -> list[Answer]:
    async with asker() as ask:
        return await asyncio.gather(*(ask.report(pod.name, pod.address, of.token) for _, of, pod in asked))
