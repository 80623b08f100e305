"""Agents inside the test's own loop, and plans as a picker signs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ballast_core.model import Role
from ballast_gateway.agent.app import Agent
from ballast_gateway.agent.settings import AgentSettings
from ballast_gateway.podapi import messages
from ballast_gateway.podapi.messages import Inventory, Listed, MoveOrder
from ballast_gateway.podapi.plan import Part, Place, Plan, sign
from tests.support.gateway_kit import Answer, post, raw_exchange
from tests.support.pod_api_calls import TOKEN, call


@dataclass(slots=True)
class RunningAgent:
    """One agent and where it is."""

    agent: Agent
    place: Place

    @property
    def port(self) -> int:
        return self.agent.ports["openai"]

    @property
    def pod_api(self) -> int:
        return self.agent.ports["pod_api"]

    async def listed(self, places: Iterable[Place], unusable: Iterable[str] = ()) -> None:
        """Give it an inventory."""
        listed = tuple(Listed.of(place, usable=place.id not in unusable) for place in places)
        answer = await call(self.pod_api, "PUT", messages.INVENTORY, messages.write(Inventory(listed)))
        assert answer.status == 204, answer.body

    async def order_move(self, request_id: str, target: str) -> Answer:
        """Order a move, as a gateway does."""
        return await call(self.pod_api, "POST", messages.MIGRATIONS, messages.write(MoveOrder(request_id, target)))


@asynccontextmanager
async def running_agent(
    tmp_path: Path, engine: str, *, name: str = "d0", role: Role = Role.DECODE, **more: Any
) -> AsyncIterator[RunningAgent]:
    """An agent beside this engine."""
    token_file = tmp_path / "token"
    token_file.write_bytes(TOKEN + b"\n")
    settings = AgentSettings(
        token_file=token_file,
        name=name,
        address="127.0.0.1:1",
        engine=engine,
        host="127.0.0.1",
        port=0,
        pod_api_host="127.0.0.1",
        pod_api_port=0,
        **more,
    )
    agent = Agent(settings)
    try:
        await agent.start()
        address = f"127.0.0.1:{agent.ports['openai']}"
        agent.places.address = address
        yield RunningAgent(agent, Place(name, address, role))
    finally:
        await agent.close()


@asynccontextmanager
async def agents(tmp_path: Path, engines: Mapping[str, str], **more: Any) -> AsyncIterator[dict[str, RunningAgent]]:
    """One agent for each engine, by name: p* prefill, f* flexible, else decode. All know all."""
    roles = {"p": Role.PREFILL, "f": Role.FLEXIBLE}
    async with AsyncExitStack() as stack:
        running = {
            name: await stack.enter_async_context(
                running_agent(tmp_path, engine, name=name, role=roles.get(name[0], Role.DECODE), **more)
            )
            for name, engine in engines.items()
        }
        places = [each.place for each in running.values()]
        await asyncio.gather(*(each.listed(places) for each in running.values()))
        yield running


def plan_header(plan: Plan, *, token: bytes = TOKEN, at_s: float | None = None) -> str:
    """The header line."""
    return f"x-ballast-plan: {sign(plan, token, time.time() if at_s is None else at_s)}"


def plan(decode: Place, prefill: Place | None = None, **more: Any) -> Plan:
    """A plan of picker gw-a for request r1."""
    return Plan(**{"id": "r1", "by": "gw-a", "decode": decode, "prefill": prefill, **more})


def cut_at(tokens: int, first: Place, second: Place) -> tuple[Part, ...]:
    """Two segments."""
    return (Part(first, tokens), Part(second, None))


async def ask(agent: RunningAgent, body: object, *headers: str, path: str = "/v1/completions") -> Answer:
    """One request."""
    (answer,) = await raw_exchange(agent.port, post(path, body, *headers), answers=1, timeout_s=60)
    return answer
