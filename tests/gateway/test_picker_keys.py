"""API keys where Envoy holds the client: the picker lets in whom the proxy face would, and keys stay with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_api.gateway_settings import Keys
from ballast_api.serving_pool import GatewaySpec
from ballast_core.model import Outcome
from ballast_gateway.driver import Driver
from ballast_gateway.keys import KeyRing
from ballast_gateway.picker.actions import Destination, Pick
from ballast_gateway.picker.exchange import Exchange, ExchangeSettings
from ballast_gateway.picker.face import PickerFace
from ballast_gateway.picker.messages import BodyMode, HeadersReply, Immediate, Inbound, Kind, Modes, Reply
from ballast_gateway.picker.transport import Session
from ballast_gateway.records import RequestRecord
from ballast_gateway.tenants import Tenant
from tests.gateway.test_keys import team, write
from tests.gateway.test_picker_grpc import body, channel, headers, process
from tests.support.core_builders import director
from tests.support.envoy import EnvoySetup, PickerAt, envoy, needs_envoy
from tests.support.gateway_kit import post, raw_exchange, running_gateway, until
from tests.support.picker_builders import MODEL, RunningPicker, endpoint_at, picker
from tests.support.scripted_engine import Asked, completion, json_reply, scripted_engine
from tests.support.upstream import Upstream, upstream

PATH = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "hello there", "max_tokens": 5}).encode()
GOOD = {"authorization": "Bearer one"}
MODES = {
    "duplex": EnvoySetup().without_response(),
    "buffered": EnvoySetup(request_body="BUFFERED", response_body="NONE").without_response(),
    "streamed": EnvoySetup(request_body="STREAMED", response_body="NONE").without_response(),
    "headers": EnvoySetup(request_body="NONE", response_body="NONE").without_response(),
}


def ring(tmp_path: Path, **limits: int) -> KeyRing:
    return KeyRing(Keys(file=write(tmp_path / "keys", team("a", "one", **limits))), lambda: 0.0)


def shown(given: Mapping[str, str] | None = None, *, path: str = PATH, end: bool = False) -> Inbound:
    """The head of a request."""
    return Inbound(
        kind=Kind.REQUEST_HEADERS,
        headers={":path": path, "content-type": "application/json", **(given or {})},
        modes=Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE),
        end_of_stream=end,
    )


WHOLE = Inbound(kind=Kind.REQUEST_BODY, body=BODY, end_of_stream=True)


# --- the protocol --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{}, {"authorization": "Bearer two"}, {"authorization": "Basic one"}, {"x-api-key": "\u00e9"}],
    ids=["none", "unknown", "another scheme", "not ASCII"],
)
def test_who_has_no_good_key_is_refused_at_the_head(given: dict[str, str], tmp_path: Path) -> None:
    """Nothing of its body is kept."""
    exchange = Exchange(ExchangeSettings(max_body_bytes=1000, keys=ring(tmp_path)))
    [answer, *_] = exchange.receive(shown(given))
    assert isinstance(answer, Immediate)
    assert (answer.status, answer.reason) == (401, "invalid-api-key")
    assert exchange.receive(WHOLE) == []


def test_a_body_whose_headers_the_proxy_does_not_show_has_no_key(tmp_path: Path) -> None:
    exchange = Exchange(ExchangeSettings(max_body_bytes=1000, keys=ring(tmp_path)))
    [answer, *_] = exchange.receive(WHOLE)
    assert isinstance(answer, Immediate)
    assert answer.status == 401


def test_a_good_key_names_the_tenant_and_goes_no_further(tmp_path: Path) -> None:
    """Both headers are taken out, whichever had it."""
    exchange = Exchange(ExchangeSettings(max_body_bytes=1000, keys=ring(tmp_path)))
    assert exchange.receive(shown({"x-api-key": "one", "authorization": "Basic else"})) == []
    [pick] = exchange.receive(WHOLE)
    assert isinstance(pick, Pick)
    assert pick.query.key_of is not None
    assert (pick.query.tenant, pick.query.key_of.name) == ("a", "a")
    head = exchange.routed(Destination("10.0.0.1:8000"), "id")[0]
    assert isinstance(head, HeadersReply)
    assert head.change is not None
    assert {"x-api-key", "authorization"} <= set(head.change.remove)


def test_a_health_check_needs_no_key(tmp_path: Path) -> None:
    exchange = Exchange(ExchangeSettings(max_body_bytes=1000, keys=ring(tmp_path)))
    [pick] = exchange.receive(shown(path="/health", end=True))
    assert isinstance(pick, Pick)
    assert pick.query.key_of is None


# --- shares --------------------------------------------------------------------------------------------------------


class Faced:
    """A picker without a network, and one tenant with a share."""

    def __init__(self, tmp_path: Path, *names: str, hold_s: float = 0.0, **limits: int) -> None:
        self.driver = Driver(director(names, hold_s=hold_s))
        keys = ring(tmp_path, **limits)
        self.records: list[RequestRecord] = []
        self.face = PickerFace(
            self.driver,
            ExchangeSettings(max_body_bytes=1000, keys=keys),
            new_id=lambda: "id",
            on_record=self.records.append,
        )
        tenant = keys.tenant([(b"x-api-key", b"one")])
        assert tenant is not None
        self.tenant: Tenant = tenant

    def ask(self, request_id: str) -> tuple[Session, list[Reply]]:
        session = self.face.open(lambda replies: None)
        head = shown({**GOOD, "x-request-id": request_id})
        return session, [*session.receive(head), *session.receive(WHOLE)]


async def test_a_request_is_in_flight_until_its_end(tmp_path: Path) -> None:
    """Which scrapes tell here; the next one is refused until then, with a time to come back."""
    on = Faced(tmp_path, "f0", maxInFlight=1)
    first, routed = on.ask("first")
    assert not any(isinstance(reply, Immediate) for reply in routed)
    first.close(broken=False)
    second, [refused] = on.ask("second")
    assert isinstance(refused, Immediate)
    assert (refused.status, refused.reason) == (429, "tenant-limit")
    assert dict(refused.headers)["retry-after"] == "1"
    second.close(broken=False)
    assert [(each.outcome, each.reason) for each in on.records][-1] == ("rejected", "tenant-limit")
    on.face.unseen.lost(on.driver.endpoints()[0].id)
    _, routed = on.ask("third")
    assert not any(isinstance(reply, Immediate) for reply in routed)
    on.driver.close()


async def test_output_that_is_told_counts_and_a_prompt_that_nobody_read_does_not(tmp_path: Path) -> None:
    on = Faced(tmp_path, "f0", tokensPerMinute=100)
    before = on.tenant._left
    session, _ = on.ask("served")
    prompt = before - on.tenant._left
    assert prompt > 0
    ticket = on.driver.ticket(next(iter(on.driver._tickets)))
    assert ticket is not None
    ticket.end(Outcome.COMPLETED, 30)
    assert on.tenant._left == before - prompt - 30
    session.close(broken=False)
    assert (on.tenant._left, on.tenant._in_flight) == (before - prompt - 30, 0)
    nowhere = Faced(tmp_path, tokensPerMinute=100)
    nowhere.ask("rejected")
    assert (nowhere.tenant._left, nowhere.tenant._in_flight) == (before, 0)
    for each in (on, nowhere):
        each.driver.close()


async def test_a_client_that_leaves_while_its_request_waits_takes_it_out_of_the_share(tmp_path: Path) -> None:
    on = Faced(tmp_path, hold_s=60.0, maxInFlight=1, tokensPerMinute=100)
    session, replies = on.ask("held")
    assert replies == []
    assert on.tenant._in_flight == 1
    session.close(broken=True)
    assert (on.tenant._in_flight, on.tenant._left) == (0, 100)
    on.driver.close()


# --- the whole gateway ---------------------------------------------------------------------------------------------


async def test_both_faces_count_in_one_share(tmp_path: Path) -> None:
    """And each lets in by the same file."""
    going = asyncio.Event()

    async def slow(asked: Asked, writer: Any) -> None:
        await going.wait()
        writer.write(json_reply(completion()))

    file = write(tmp_path / "keys", team("a", "one", maxInFlight=1))
    async with (
        scripted_engine(slow) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, face="Both", keys={"file": file}) as gateway,
    ):
        asks = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "logprobs": 1}
        asked = asyncio.create_task(raw_exchange(gateway.port, post(PATH, asks, "x-api-key: one"), answers=1))
        await until(lambda: len(engine.asked) == 1)
        async with channel(gateway.gateway.ports["ext_proc"]) as made:
            stream = process(made)
            await stream.write(headers(GOOD))
            await stream.write(body(json.dumps(asks).encode()))
            refused = (await stream.read()).immediate_response
            assert (refused.status.code, refused.details) == (429, "ballast_tenant-limit")
        going.set()
        [answer] = await asked
        assert answer.status == 200


@pytest.mark.parametrize("face", ["Proxy", "Picker", "Both"])
def test_every_face_takes_keys(face: str) -> None:
    """In a ServingPool, too."""
    assert GatewaySpec.parse({"face": face, "settings": {"keys": {"file": "/keys"}}}).settings is not None


@dataclass(frozen=True, slots=True)
class Stage:
    """Client -> Envoy -> picker and upstream."""

    client: httpx.AsyncClient
    picker: RunningPicker
    upstream: Upstream


@asynccontextmanager
async def stage(setup: EnvoySetup, tmp_path: Path, **limits: int) -> AsyncIterator[Stage]:
    keys = write(tmp_path / "keys", team("a", "one", **limits))
    async with AsyncExitStack() as stack:
        behind = await stack.enter_async_context(upstream())
        running = await stack.enter_async_context(picker([endpoint_at(behind.address)], keys=keys))
        at = await stack.enter_async_context(
            envoy([PickerAt(running.server.port, running.server.health_port)], setup, tmp_path)
        )
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=at.url, timeout=30))
        yield Stage(client, running, behind)


@pytest.mark.envoy
@needs_envoy
@pytest.mark.parametrize("setup", MODES.values(), ids=MODES)
async def test_behind_envoy_no_stranger_gets_through_and_no_key(setup: EnvoySetup, tmp_path: Path) -> None:
    """In every mode. One request in flight is the share."""
    async with stage(setup, tmp_path, maxInFlight=1) as on:
        head = {"content-type": "application/json"}
        for wrong in ({}, {"authorization": "Bearer two"}, {"x-api-key": "two"}):
            refused = await on.client.post(PATH, content=BODY, headers=head | wrong)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid-api-key"
        assert on.upstream.seen == []
        served = await on.client.post(PATH, content=BODY, headers=head | GOOD)
        assert served.status_code == 200
        [seen] = on.upstream.seen
        assert not {"authorization", "x-api-key"} & seen.headers.keys()
        limited = await on.client.post(PATH, content=BODY, headers=head | {"x-api-key": "one"})
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "1")
        await until(on.picker.all_idle)
        again = await on.client.post(PATH, content=BODY, headers=head | {"x-api-key": "one"})
        assert again.status_code == 200
