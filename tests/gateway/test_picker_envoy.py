"""The picker face behind a real Envoy: what clients send, what upstreams get, and which of them serves.

Everything is real and on loopback: Envoy with the ext_proc filter, our gRPC server, three upstreams that record what
they see. The core claim: every request lands on the endpoint that the picker chose.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_api.gateway_settings import Limits
from ballast_core.model import Outcome, Role
from ballast_core.model import Stage as StageOf
from ballast_gateway.tls.certificates import Certificates, PairOfFiles, Tls
from tests.support.certificates import MountedSecret
from tests.support.envoy import EnvoySetup, PickerAt, envoy, needs_envoy
from tests.support.picker_builders import MODEL, RunningPicker, endpoint_at, picker
from tests.support.upstream import Seen, Upstream, upstream

pytestmark = [pytest.mark.envoy, needs_envoy]

PATH = "/v1/completions"
DUPLEX = EnvoySetup()
BUFFERED = EnvoySetup(request_body="BUFFERED", response_body="STREAMED")
STREAMED = EnvoySetup(request_body="STREAMED", response_body="STREAMED")
HEADERS_ONLY = EnvoySetup(request_body="NONE", response_body="NONE")
MODES = {
    "duplex": DUPLEX,
    "duplex, request only": DUPLEX.without_response(),
    "buffered": BUFFERED,
    "buffered, request only": BUFFERED.without_response(),
    "buffered partial": EnvoySetup(request_body="BUFFERED_PARTIAL", response_body="BUFFERED_PARTIAL"),
    "streamed": STREAMED,
    "headers": HEADERS_ONLY,
    "headers, request only": HEADERS_ONLY.without_response(),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """Client -> Envoy -> picker and upstreams."""

    client: httpx.AsyncClient
    picker: RunningPicker
    upstreams: Sequence[Upstream]

    @property
    def seen(self) -> list[tuple[str, Seen]]:
        """Every request that an upstream got, and which."""
        return [(one.address, seen) for one in self.upstreams for seen in one.seen]

    async def post(self, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(PATH, json=completion() if body is None else body, headers=named)


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hello there"} | fields


@asynccontextmanager
async def stage(
    setup: EnvoySetup,
    folder: Path,
    *,
    roles: Sequence[Role] = (Role.FLEXIBLE,) * 3,
    limits: Limits | None = None,
    hidden: int = 0,
    tls: Tls | None = None,
    fallbacks: int = 0,
) -> AsyncIterator[Stage]:
    """Three upstreams, the last `hidden` of which are not known to the picker."""
    async with AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(upstream()) for _ in roles]
        known = [endpoint_at(one.address, role) for one, role in zip(upstreams, roles, strict=True)]
        known = known[: len(known) - hidden]
        running = await stack.enter_async_context(picker(known, limits=limits, tls=tls, fallbacks=fallbacks))
        if setup.steer.startswith("override-host"):
            setup = replace(setup, hosts=tuple(one.address for one in upstreams))
        ports = PickerAt(running.server.port, running.server.health_port)
        at = await stack.enter_async_context(envoy([ports], setup, folder))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=at.url, timeout=30))
        yield Stage(client, running, upstreams)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is awaited are other processes' steps)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("setup", MODES.values(), ids=MODES)
async def test_every_request_lands_on_the_endpoint_that_was_picked(setup: EnvoySetup, tmp_path: Path) -> None:
    """Decisions and upstreams agree request by request; the client's spoofed headers never win."""
    spoof = {"x_gateway_destination_endpoint": "127.0.0.1:1", "x_gateway_destination_endpoint_subset": "127.0.0.1:1"}
    async with stage(setup, tmp_path) as on:
        answers = await asyncio.gather(
            *(on.post(completion(n=k), x_request_id=f"id-{k}", **(spoof if k % 2 else {})) for k in range(30))
        )
        assert [answer.status_code for answer in answers] == [200] * 30
        chosen = {event.request_id: event.decode for event in on.picker.picked}
        assert chosen == {seen.headers["x-request-id"]: address for address, seen in on.seen}
        assert len(chosen) == 30
        assert {answer.json()["served_by"] for answer in answers} == {one.address for one in on.upstreams}
        for address, seen in on.seen:
            assert seen.headers["x-gateway-destination-endpoint"] == address
            assert "x-gateway-destination-endpoint-subset" not in seen.headers
        await until(on.picker.all_idle)
        assert {event.outcome for event in on.picker.finished} == {Outcome.COMPLETED}


@pytest.mark.parametrize("required", [False, True], ids=["optional", "required"])
async def test_envoy_speaks_tls_to_a_certificate_that_changes_under_load(required: bool, tmp_path: Path) -> None:
    """Its health checks, too. Not a request is lost, nor a pick, while the certificate changes."""
    secret = MountedSecret(tmp_path / "secret")
    at = {name: Path(path) for name, path in secret.settings.items()}
    shown = Certificates(PairOfFiles(at["certFile"], at["keyFile"]), alpn=["h2"])
    setup = EnvoySetup(tls=True, survives=True)
    async with stage(setup, tmp_path, tls=Tls(shown, required)) as on:
        answers = []
        for rotation in range(3):
            going = [asyncio.create_task(on.post(x_request_id=f"id-{rotation}-{k}")) for k in range(20)]
            secret.rotate()
            answers += await asyncio.gather(*going)
            await until(lambda: shown.reloads["loaded"] == rotation + 1)  # noqa: B023
        assert [answer.status_code for answer in answers] == [200] * 60
        chosen = {event.request_id: event.decode for event in on.picker.picked}
        assert chosen == {seen.headers["x-request-id"]: address for address, seen in on.seen}
        assert len(chosen) == 60
        assert not any(shown.refused.values())


@pytest.mark.parametrize("steer", ["metadata", "override-host"])
async def test_other_ways_of_steering_follow_the_pick_too(steer: Any, tmp_path: Path) -> None:
    """By dynamic metadata alone, and as Envoy Gateway's endpoint override does it."""
    async with stage(EnvoySetup(steer=steer), tmp_path) as on:
        for k in range(9):
            assert (await on.post(x_request_id=f"id-{k}")).status_code == 200
        chosen = {event.request_id: event.decode for event in on.picker.picked}
        assert chosen == {seen.headers["x-request-id"]: address for address, seen in on.seen}


@pytest.mark.parametrize("steer", ["override-host", "override-host-metadata"])
async def test_a_request_goes_on_at_the_next_endpoint_that_is_named(steer: Any, tmp_path: Path) -> None:
    """The first one takes no connections: with retries no client sees that."""
    async with stage(EnvoySetup(steer=steer, retries=True), tmp_path, fallbacks=2) as on:
        dead = on.upstreams[0]
        dead.refuse()
        for k in range(9):
            assert (await on.post(x_request_id=f"id-{k}")).status_code == 200
        served = {seen.headers["x-request-id"]: (address, seen) for address, seen in on.seen}
        picked = {event.request_id: event.decode for event in on.picker.picked}
        assert dead.address in picked.values()
        for request_id, (address, seen) in served.items():
            named = seen.headers["x-gateway-destination-endpoint"].split(",")
            assert sorted(named) == sorted(one.address for one in on.upstreams)
            assert named[0] == picked[request_id]
            assert address == next(one for one in named if one != dead.address), "the first that lives, in order"


async def test_what_goes_on_at_a_fall_back_is_booked_there(tmp_path: Path) -> None:
    """Envoy says who serves among the attributes of the response's headers; it writes no metadata about that."""
    setup = EnvoySetup(steer="override-host", retries=True, extra={"response_attributes": ["upstream.address"]})
    async with stage(setup, tmp_path, fallbacks=2) as on:
        director = on.picker.driver.director
        dead, held = on.upstreams[0], asyncio.Event()
        dead.refuse()
        for one in on.upstreams:
            one.held = held
        streams = [asyncio.create_task(on.post(completion(stream=True), x_request_id=f"id-{k}")) for k in range(6)]
        await until(lambda: len(on.seen) == 6 and sum(director.ledger.decoding_requests) == 6)
        ids = {one.address: one.id for one in on.picker.endpoints}
        slots = {address: director.inventory.slot_of(name) for address, name in ids.items()}
        booked = {address: director.ledger.requests[StageOf.DECODE][slot] for address, slot in slots.items()}
        assert booked == {one.address: len(one.seen) for one in on.upstreams}
        assert director.health.report(ids[dead.address]).failed_legs == 2, "a third of them were picked for it"
        held.set()
        assert [(await each).status_code for each in streams] == [200] * 6
        await until(lambda: on.picker.in_flight == 0)
        assert {event.outcome for event in on.picker.finished} == {Outcome.COMPLETED}
        assert {event.served for event in on.picker.finished} == {one.address for one in on.upstreams[1:]}


async def test_without_retries_the_first_endpoint_is_the_only_one(tmp_path: Path) -> None:
    """A list alone does not make Envoy try again."""
    async with stage(EnvoySetup(steer="override-host"), tmp_path, fallbacks=2) as on:
        on.upstreams[0].refuse()
        answers = [await on.post(x_request_id=f"id-{k}") for k in range(6)]
        picked = {event.request_id: event.decode for event in on.picker.picked}
        dead = [picked[f"id-{k}"] == on.upstreams[0].address for k in range(6)]
        assert [answer.status_code for answer in answers] == [503 if one else 200 for one in dead]
        assert any(dead)


@pytest.mark.parametrize("steer", ["header", "metadata"])
async def test_original_dst_takes_no_list(steer: Any, tmp_path: Path) -> None:
    """So fall-backs are off by default."""
    async with stage(EnvoySetup(steer=steer, retries=True), tmp_path, fallbacks=1) as on:
        assert [(await on.post()).status_code for _ in range(3)] == [503] * 3
        assert on.seen == []


async def test_prefill_and_decode_endpoints_are_named_to_the_pod(tmp_path: Path) -> None:
    """The sidecar in the decode pod gets the prefiller from us, never from the client."""
    async with stage(DUPLEX, tmp_path, roles=(Role.PREFILL, Role.DECODE, Role.DECODE)) as on:
        for _ in range(4):
            await on.post(x_prefiller_host_port="127.0.0.1:1", x_encoder_hosts_ports="127.0.0.1:1")
        prefill = on.upstreams[0]
        assert prefill.seen == []
        assert len(on.seen) == 4
        for _, seen in on.seen:
            assert seen.headers["x-prefiller-host-port"] == prefill.address
            assert "x-encoder-hosts-ports" not in seen.headers


async def test_a_spoofed_prefiller_does_not_reach_the_pod(tmp_path: Path) -> None:
    """Where there is no prefill leg the header is gone."""
    async with stage(DUPLEX, tmp_path) as on:
        await on.post(x_prefiller_host_port="127.0.0.1:1")
        assert "x-prefiller-host-port" not in on.seen[0][1].headers


@pytest.mark.parametrize("setup", [DUPLEX, BUFFERED, STREAMED], ids=["duplex", "buffered", "streamed"])
async def test_kv_transfer_params_of_the_client_are_taken_out(setup: EnvoySetup, tmp_path: Path) -> None:
    """The rest of the body arrives as it was, with a length that fits."""
    async with stage(setup, tmp_path) as on:
        answer = await on.post(completion(kv_transfer_params={"remote_host": "evil"}))
        assert answer.status_code == 200
        assert json.loads(on.seen[0][1].body) == completion()


async def test_a_body_of_three_megabytes_passes_in_duplex(tmp_path: Path) -> None:
    """Byte for byte, in chunks that Envoy takes."""
    async with stage(DUPLEX, tmp_path) as on:
        document = completion(prompt="x" * 3_000_000)
        answer = await on.post(document)
        assert answer.status_code == 200
        assert json.loads(on.seen[0][1].body) == document
        assert on.picker.picked[0].prompt_tokens == 750_000


async def test_a_body_without_length_passes(tmp_path: Path) -> None:
    """Chunked from the client, in pieces."""

    async def pieces() -> AsyncIterator[bytes]:
        raw = json.dumps(completion(kv_transfer_params={})).encode()
        for at in range(0, len(raw), 7):
            yield raw[at : at + 7]
            await asyncio.sleep(0)

    async with stage(DUPLEX, tmp_path) as on:
        answer = await on.client.post(PATH, content=pieces())
        assert answer.status_code == 200
        assert json.loads(on.seen[0][1].body) == completion()


@pytest.mark.parametrize("setup", [DUPLEX, BUFFERED, STREAMED], ids=["duplex", "buffered", "streamed"])
async def test_trailers_end_a_body_and_reach_the_pod(setup: EnvoySetup, tmp_path: Path) -> None:
    """A proxy that waits for the end of such a body would hang."""
    raw = json.dumps(completion()).encode()
    async with stage(setup, tmp_path) as on:
        reader, writer = await asyncio.open_connection(on.client.base_url.host, on.client.base_url.port)
        writer.write(
            f"POST {PATH} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n".encode()
            + f"{len(raw):x}\r\n".encode()
            + raw
            + b"\r\n0\r\nx-sum: 42\r\n\r\n"
        )
        async with asyncio.timeout(20):
            assert (await reader.readline()).split()[1] == b"200"
        writer.close()
        ((address, seen),) = on.seen
        assert (address, seen.body) == (on.picker.picked[0].decode, raw)
        assert seen.trailers == {"x-sum": "42"}


@pytest.mark.parametrize("setup", [DUPLEX, HEADERS_ONLY], ids=["duplex", "headers"])
async def test_a_get_is_routed(setup: EnvoySetup, tmp_path: Path) -> None:
    """It gets an id, and no prefiller."""
    async with stage(setup, tmp_path, roles=(Role.PREFILL, Role.DECODE, Role.DECODE)) as on:
        assert (await on.client.get("/v1/models")).status_code == 200
        ((address, seen),) = on.seen
        assert (seen.method, seen.path, address) == ("GET", "/v1/models", on.picker.picked[0].decode)
        assert "x-prefiller-host-port" not in seen.headers


async def test_a_web_socket_passes(tmp_path: Path) -> None:
    """Both ways, until the client closes; its booking ends with it."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        while frames := await reader.read(100):
            writer.write(frames)
        writer.close()

    setup = replace(DUPLEX, web_sockets=True).without_response()
    async with AsyncExitStack() as stack:
        pod = await stack.enter_async_context(await asyncio.start_server(echo, "127.0.0.1", 0))
        host, port = pod.sockets[0].getsockname()
        running = await stack.enter_async_context(picker([endpoint_at(f"{host}:{port}")]))
        at = await stack.enter_async_context(envoy(running.server.port, setup, tmp_path))
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(at.url).port)
        offer = "host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13"
        writer.write(f"GET /v1/models HTTP/1.1\r\n{offer}\r\nsec-websocket-key: AAAA\r\n\r\n".encode())
        async with asyncio.timeout(20):
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            for frames in (b"one", b"another"):
                writer.write(frames)
                assert await reader.readexactly(len(frames)) == frames
        assert running.in_flight == 1
        writer.close()
        await until(lambda: running.in_flight == 0)


@pytest.mark.parametrize("setup", [DUPLEX, BUFFERED], ids=["duplex", "buffered"])
async def test_a_body_without_a_model_is_for_the_first_one(setup: EnvoySetup, tmp_path: Path) -> None:
    """As with vLLM, and on the proxy face."""
    async with stage(setup, tmp_path) as on:
        assert (await on.post({"prompt": "x"})).status_code == 200
        assert [event.model for event in on.picker.picked] == [MODEL]


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b'{"model": ', 400, "invalid-request"),
        (b'{"model": "other", "prompt": "x"}', 404, "model-not-found"),
        (b'{"model": "' + b"m" * 2000 + b'"}', 413, "body-too-large"),
    ],
    ids=["no JSON", "other model", "too large"],
)
@pytest.mark.parametrize("setup", [DUPLEX, BUFFERED, STREAMED], ids=["duplex", "buffered", "streamed"])
async def test_bad_requests_get_openai_shaped_errors(
    setup: EnvoySetup, content: bytes, status: int, code: str, tmp_path: Path
) -> None:
    """Through Envoy, and the picker lives on."""
    async with stage(setup, tmp_path, limits=Limits(max_body_bytes=1500)) as on:
        answer = await on.client.post(PATH, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == answer.headers["x-ballast-reason"] == code
        assert answer.headers["content-type"] == "application/json"
        assert (await on.post()).status_code == 200
        await until(lambda: on.picker.in_flight == 0)


@pytest.mark.parametrize("setup", MODES.values(), ids=MODES)
async def test_without_an_endpoint_the_client_gets_503(setup: EnvoySetup, tmp_path: Path) -> None:
    """With Retry-After and a reason that machines can read; nothing reaches an upstream."""
    async with stage(setup, tmp_path, hidden=3) as on:
        answer = await on.post()
        assert answer.status_code == 503
        assert answer.headers["retry-after"] in {"1", "2"}  # a second, with jitter
        assert answer.json()["error"]["code"] == answer.headers["x-ballast-reason"] == "no-endpoints"
        assert on.seen == []


async def test_a_subset_hint_binds_the_pick(tmp_path: Path) -> None:
    """Envoy writes it as a comma-separated string; an empty choice is 503, not a free one."""
    async with stage(EnvoySetup(subset="x-allow"), tmp_path, hidden=1) as on:
        first, second, unknown = (one.address for one in on.upstreams)
        for _ in range(3):
            assert (await on.post(x_allow=f"{second},{unknown}")).json()["served_by"] == second
        assert (await on.post(x_allow=first)).json()["served_by"] == first
        assert (await on.post(x_allow=unknown)).status_code == 503


async def test_beyond_the_limit_requests_are_shed(tmp_path: Path) -> None:
    """429 with Retry-After; the one in flight is not disturbed, and its end makes room."""
    async with stage(DUPLEX, tmp_path, limits=Limits(max_in_flight=1)) as on:
        gate = asyncio.Semaphore(0)
        for one in on.upstreams:
            one.paced = gate
        async with on.client.stream("POST", PATH, json=completion(stream=True)) as kept:
            answer = await on.post()
            assert answer.status_code == 429
            assert answer.headers["retry-after"] in {"1", "2"}
            assert answer.json()["error"]["code"] == "saturated"
            for _ in range(3):
                gate.release()
            assert len([line async for line in kept.aiter_lines() if line]) == 3
        await until(lambda: on.picker.in_flight == 0)
        assert (await on.post()).status_code == 200


@pytest.mark.parametrize("setup", MODES.values(), ids=MODES)
async def test_server_sent_events_pass_one_by_one(setup: EnvoySetup, tmp_path: Path) -> None:
    """The client has each event before the upstream sends the next, and the request is in flight meanwhile."""
    if setup.response_body in ("BUFFERED", "BUFFERED_PARTIAL"):
        setup = EnvoySetup(request_body=setup.request_body, response_body="STREAMED")
    async with stage(setup, tmp_path) as on:
        gate = asyncio.Semaphore(0)
        for one in on.upstreams:
            one.paced = gate
        async with (
            asyncio.timeout(20),
            on.client.stream("POST", PATH, json=completion(stream=True)) as answer,
        ):
            lines = answer.aiter_lines()
            for n in range(3):
                assert on.picker.in_flight == 1
                gate.release()
                assert json.loads((await anext(lines)).removeprefix("data: "))["n"] == n
                assert await anext(lines) == ""
            assert [line async for line in lines] == []
        await until(on.picker.all_idle)


@pytest.mark.parametrize("setup", [DUPLEX, BUFFERED], ids=["duplex", "buffered"])
async def test_a_client_that_goes_away_frees_the_ledger_and_the_engine(setup: EnvoySetup, tmp_path: Path) -> None:
    """In the middle of a stream; counted as cancelled, once."""
    async with stage(setup, tmp_path) as on:
        gate = asyncio.Semaphore(0)
        for one in on.upstreams:
            one.paced = gate
        async with on.client.stream("POST", PATH, json=completion(stream=True)) as answer:
            gate.release()
            await anext(answer.aiter_lines())
            assert on.picker.in_flight == 1
        await until(lambda: on.picker.in_flight == 0)
        assert [event.outcome for event in on.picker.finished] == [Outcome.CANCELLED]
        await until(lambda: sum(one.broken for one in on.upstreams) == 1)


async def test_each_request_leaves_one_record(tmp_path: Path) -> None:
    """For the request log and the metrics: what was placed where, and how it ended."""
    async with stage(DUPLEX, tmp_path, roles=(Role.PREFILL, Role.DECODE)) as on:
        prefill, decode = (one.address for one in on.upstreams)
        await on.post(completion(stream=True), x_request_id="good")
        await on.post(completion(model="other"))
        await until(lambda: len(on.picker.records) == 2)
        good, bad = on.picker.records
        assert (good.id, good.path, good.model, good.status, good.outcome) == ("good", PATH, MODEL, 200, "completed")
        assert (good.prefill, good.decode) == (f"prefill-{prefill}", f"decode-{decode}")
        assert good.prompt_tokens == 3
        assert good.first_token_s is not None
        assert good.arrived_s < good.first_token_s <= good.ended_s
        assert (bad.path, bad.model, bad.status, bad.reason) == (PATH, "", 404, "model-not-found")
        assert (bad.outcome, bad.decode) == ("invalid", "")


async def test_an_engine_error_reaches_the_client_and_counts_as_failed(tmp_path: Path) -> None:
    """The engine's own answer passes unchanged."""
    async with stage(DUPLEX, tmp_path) as on:
        for one in on.upstreams:
            one.status = 500
        answer = await on.post()
        assert (answer.status_code, "served_by" in answer.json()) == (500, True)
        await until(lambda: on.picker.in_flight == 0)
        assert [event.outcome for event in on.picker.finished] == [Outcome.FAILED]
