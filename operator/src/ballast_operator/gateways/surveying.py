"""Asks the gateways of one ServingPool what it takes to empty its pods: within a look, for a few seconds at most."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ballast_api import names
from ballast_api.load_report import LoadReport
from ballast_operator.gateways.asking import NoAnswer, asker
from ballast_operator.gateways.gateway_pods import GatewayPod, gateway_pod
from ballast_operator.gateways.loads import Loads, loads_of
from ballast_operator.kinds import Manifest


def ask_loads(pods: Sequence[Manifest], token: bytes, *, admin_port: int = names.PORT_ADMIN) -> Loads:
    """`pods`: those of a ServingPool, engines among them. A gateway that is not ready counts if it answers."""
    labelled = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(names.APP_COMPONENT) == "gateway"]
    gateways = [found for pod in labelled if (found := gateway_pod(pod, admin_port)) is not None]
    reports: list[LoadReport] = []
    silent: list[str] = []
    for gateway, answer in zip(gateways, asyncio.run(_all(gateways, token)), strict=True):
        if isinstance(answer, LoadReport):
            reports.append(answer)
        elif not isinstance(answer, NoAnswer):
            raise answer
        elif gateway.ready:
            silent.append(f"{gateway.name}: {answer}")
    return loads_of(reports, silent)


async def _all(gateways: Sequence[GatewayPod], token: bytes) -> list[LoadReport | BaseException]:
    async with asker() as ask:
        asking = [ask.load(each.address, token) for each in gateways]
        return await asyncio.gather(*asking, return_exceptions=True)
