"""A fleet for the view: engines that answer scrapes, agents that say what a test has them say, and whole gateways."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ballast_gateway.app import Gateway
from ballast_gateway.picker.face import PickerFace
from ballast_gateway.picker.messages import BodyMode, HeadersReply, Inbound, Kind, Modes
from ballast_gateway.picker.transport import Session
from ballast_gateway.podapi.auth import Guard
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.plan import Plan, verify
from ballast_gateway.podapi.server import PodApiServer
from ballast_gateway.view.fleet_view import FleetView
from tests.support.gateway_kit import settings, until
from tests.support.pod_api_calls import TOKEN, NotedHolder

BODY = json.dumps({"model": "tiny", "prompt": "x" * 400, "stream": True, "max_tokens": 64}).encode()

_MODES = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE)


@dataclass
class ScriptedAgent:
    """Listens as an agent does; the test tells what happens there."""

    name: str
    feed: Feed
    server: PodApiServer
    holder: NotedHolder
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


async def scripted_agent(name: str, port: int = 0, incarnation: str = "1") -> ScriptedAgent:
    loop = asyncio.get_running_loop()
    feed = Feed(loop, holder=f"pod-{name}", incarnation=incarnation, holds="agent", endpoint=name)
    holder = NotedHolder()
    server = PodApiServer(holder, feed, Guard(lambda: (TOKEN,), time.time))
    return ScriptedAgent(name, feed, server, holder, await server.listen("127.0.0.1", port))


@asynccontextmanager
async def engines(names: tuple[str, ...]) -> AsyncIterator[dict[str, str]]:
    """Addresses by name of what answers scrapes with idle gauges."""
    text = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with AsyncExitStack() as stack:
        addresses = {}
        for name in names:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            stack.callback(server.close)
            addresses[name] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield addresses


@dataclass
class ViewFleet:
    """Engines, agents by endpoint, and gateways."""

    folder: Path
    addresses: dict[str, str]
    agents: dict[str, ScriptedAgent]
    pod_apis: dict[str, str] = field(default_factory=dict)
    """Of agents that are none of the scripted ones."""
    gateways: list[Gateway] = field(default_factory=list)

    async def start(self, peers: list[Gateway] | None = None, *, wait: bool = True, **more: Any) -> Gateway:
        """One more gateway, which hears these (all that there are) and is heard by them."""
        number = len(self.gateways)
        file = self.folder / f"endpoints{number}.yaml"
        roles = {"p": "prefill", "f": "flexible"}
        entries = []
        for name, address in self.addresses.items():
            entry = {"name": name, "address": address, "role": roles.get(name[0], "decode")}
            pod_api = self.agents[name].address if name in self.agents else self.pod_apis.get(name)
            if pod_api is not None:
                entry["podApi"] = pod_api
            entries.append(entry)
        file.write_text(json.dumps({"endpoints": entries}))
        token = self.folder / "token"
        token.write_bytes(TOKEN)
        known = self.gateways if peers is None else peers
        listeners = {"host": "127.0.0.1", "proxy": 0, "admin": 0, "extProc": 0, "grpcHealth": 0}
        config: dict[str, Any] = {
            "face": "Picker",
            "listeners": listeners,
            "podApi": {"tokenFile": str(token), "port": 0},
            **more,
        }
        if known:
            config["peers"] = {"addresses": [address_of(one) for one in known]}
        gateway = Gateway(settings(file, **config), out=io.StringIO())
        self.gateways.append(gateway)
        await gateway.start()
        for other in self.gateways[:-1]:
            if other.pod_api is not None and other in known:
                addresses = {address_of(one) for one in self.gateways if one is not other}
                other.pod_api.view.follow_peers(sorted(addresses))
        if wait:
            await until(lambda: not gateway.not_ready())
        return gateway

    async def close(self) -> None:
        """Stop all."""
        for gateway in self.gateways:
            await gateway.close()
        for agent in self.agents.values():
            await agent.server.close()


def view_of(gateway: Gateway) -> FleetView:
    assert gateway.pod_api is not None
    return gateway.pod_api.view


def lines_of(gateway: Gateway) -> list[dict[str, Any]]:
    """The request log."""
    gateway._lines.flush()
    out = gateway._lines._out
    assert isinstance(out, io.StringIO)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def address_of(gateway: Gateway) -> str:
    return f"127.0.0.1:{gateway.ports['pod_api']}"


def face_of(gateway: Gateway) -> PickerFace:
    picker: Any = gateway.picker
    face: PickerFace = picker._face
    return face


@dataclass
class Picked:
    """What a picker answered to one request."""

    session: Session
    headers: dict[str, str]

    @property
    def plan(self) -> Plan | None:
        value = self.headers.get("x-ballast-plan")
        return None if value is None else verify(value, [TOKEN], time.time())


def ask(
    gateway: Gateway,
    request_id: str,
    body: bytes = BODY,
    more: Mapping[str, str] = MappingProxyType({}),
    path: str = "/v1/completions",
) -> Picked:
    """One request, as Envoy asks in the recommended mode: its stream is closed once it is routed."""
    session = face_of(gateway).open(lambda replies: None)
    headers = {":path": path, "x-request-id": request_id, "content-type": "application/json", **more}
    replies = session.receive(Inbound(kind=Kind.REQUEST_HEADERS, headers=headers, modes=_MODES))
    replies += session.receive(Inbound(kind=Kind.REQUEST_BODY, body=body, end_of_stream=True))
    changed = [reply.change for reply in replies if isinstance(reply, HeadersReply)]
    return Picked(session, dict(changed[0].set) if changed and changed[0] is not None else {})


@asynccontextmanager
async def view_fleet(
    tmp_path: Path, names: tuple[str, ...] = ("p0", "d0", "d1"), agents: tuple[str, ...] = ("d0", "d1")
) -> AsyncIterator[ViewFleet]:
    """Engines and agents that listen; gateways are started by the test."""
    async with engines(names) as addresses:
        scripted = {name: await scripted_agent(name) for name in agents}
        fleet = ViewFleet(tmp_path, addresses, scripted)
        try:
            yield fleet
        finally:
            await fleet.close()
