"""Asks all gateways for their counts. A pod should answer while it is ready; one that ends still counts if it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from ballast_api import names
from ballast_operator.gateways.asking import asker
from ballast_operator.gateways.board import Board, Name
from ballast_operator.gateways.gateway_pods import GatewayPod, gateway_pods
from ballast_operator.gateways.listing import GATEWAYS, Lists, listed
from ballast_operator.gateways.measured import Answer, Followed, measured
from ballast_operator.gateways.rounds import Rounds, every

ROUND_S: Final = 15.0
"""Seconds from the beginning of one round to that of the next."""


class Collector:
    """Calls `changed`, in the thread of its rounds, with each ServingPool whose status has something new to say."""

    def __init__(
        self,
        api: Lists,
        board: Board,
        changed: Callable[[Name], None],
        *,
        namespaces: tuple[str, ...] = (),
        admin_port: int = names.PORT_ADMIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespaces`: those that are served; empty: all."""
        self._api = api
        self._board = board
        self._changed = changed
        self._namespaces = namespaces
        self._admin_port = admin_port
        self._clock = clock

    def rounds(self, round_s: float = ROUND_S) -> Rounds:
        """To make them again and again."""
        return Rounds("collect", self.collect, due_s=every(round_s), without="gateways are not asked for their counts")

    def collect(self) -> None:
        """One round. Raises `ApiFailure`."""
        followed = self._board.followed()
        if not followed:
            return
        pods = gateway_pods(listed(self._api, followed, self._namespaces, GATEWAYS), self._admin_port)
        asked = [(name, of, pod) for name, of in followed.items() for pod in pods.get(name, ())]
        answers: dict[Name, list[Answer]] = {name: [] for name in followed}
        for (name, _, pod), answer in zip(asked, asyncio.run(_reports(asked)), strict=True):
            if pod.ready or answer.report is not None:
                answers[name].append(answer)
        for name, of in followed.items():
            if self._board.answered(name, of, measured(of.objectives, answers[name]), self._clock()):
                self._changed(name)


async def _reports(asked: Sequence[tuple[Name, Followed, GatewayPod]]) -> list[Answer]:
    async with asker() as ask:
        return await asyncio.gather(*(ask.report(pod.name, pod.address, of.token) for _, of, pod in asked))
