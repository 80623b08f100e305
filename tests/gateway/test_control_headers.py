"""Headers by which a client could choose an engine or read another's KV: the whole table, through both faces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from ballast_api.wire_names import CONTROL_HEADERS, DESTINATION
from ballast_core.model import Role
from ballast_gateway.picker import codec
from tests.support.gateway_kit import post, raw_exchange, running_gateway
from tests.support.picker_builders import MODEL, endpoint_at, picker
from tests.support.scripted_engine import decode_script, prefill_script, scripted_engine

EVIL = "evil.test:1"
TABLE = [*CONTROL_HEADERS, f"{DESTINATION}-of-a-later-version"]
BODY = f'{{"model":"{MODEL}","prompt":"hello"}}'.encode()
PREFILL_AND_DECODE = [endpoint_at("10.0.0.1:8000", Role.PREFILL), endpoint_at("10.0.0.2:8000", Role.DECODE)]
FLEXIBLE = [endpoint_at("10.0.0.3:8000")]


def as_envoy_applies_it(headers: dict[str, str], mutation: Any) -> dict[str, str]:
    """The headers that Envoy forwards: removals first, then what is set, each replacing what was there."""
    forwarded = {name: value for name, value in headers.items() if name not in mutation.remove_headers}
    for change in mutation.set_headers:
        assert change.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        forwarded[change.header.key] = change.header.raw_value.decode()
    return forwarded


@pytest.mark.parametrize("shape", ["pd", "flexible"])
@pytest.mark.parametrize("name", TABLE)
async def test_no_engine_behind_the_proxy_face_sees_it(name: str, shape: str, tmp_path: Path) -> None:
    """On every leg, over real sockets, in any case of letters; what else the client sent passes."""
    async with scripted_engine(prefill_script) as first, scripted_engine(decode_script) as second:
        addresses = {"p0": first.address, "d0": second.address} if shape == "pd" else {"f0": second.address}
        async with running_gateway(tmp_path, addresses) as gateway:
            request = post(
                "/v1/completions", {"model": "tiny", "prompt": "a"}, f"{name.title()}: {EVIL}", "x-harmless: 1"
            )
            (answer,) = await raw_exchange(gateway.port, request, answers=1)
        assert answer.status == 200
        asked = [*first.asked, *second.asked]
        assert len(asked) == len(addresses)
        for each in asked:
            assert each.headers["x-harmless"] == "1"
            assert name not in each.headers
            assert EVIL not in each.headers.values()


@pytest.mark.parametrize("shape", ["pd", "flexible"])
@pytest.mark.parametrize("shown", [True, False], ids=["headers shown", "headers hidden"])
@pytest.mark.parametrize("name", CONTROL_HEADERS)
async def test_envoy_never_forwards_it_for_the_picker_face(name: str, shown: bool, shape: str) -> None:
    """Over real gRPC: removed or replaced, also where Envoy keeps the headers to itself (request header mode SKIP)."""
    sent = {":path": "/v1/completions", ":method": "POST", "x-harmless": "1", name: EVIL}
    buffered = pb.ProtocolConfiguration(request_body_mode=2, response_body_mode=0)
    pairs = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in sent.items()]
    headers = pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=pairs))
    body = pb.HttpBody(body=BODY, end_of_stream=True)
    async with (
        picker(PREFILL_AND_DECODE if shape == "pd" else FLEXIBLE) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.server.port}") as channel,
    ):
        method: Any = channel.stream_stream(
            codec.METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString
        )
        call = method()
        if shown:
            await call.write(pb.ProcessingRequest(request_headers=headers, protocol_config=buffered))
            await call.read()
            await call.write(pb.ProcessingRequest(request_body=body))
        else:
            await call.write(pb.ProcessingRequest(request_body=body, protocol_config=buffered))
        answer = await call.read()
        forwarded = as_envoy_applies_it(sent, answer.request_body.response.header_mutation)
        call.cancel()
    assert forwarded["x-harmless"] == "1"
    assert forwarded[DESTINATION] == running.picked[0].decode
    assert EVIL not in forwarded.values()


async def test_the_picker_face_knows_the_protocols_later_names_by_their_beginning() -> None:
    """A name that extends the destination header is the protocol's, whatever follows."""
    name = TABLE[-1]
    sent = {":path": "/v1/models", ":method": "GET", name: EVIL}
    pairs = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in sent.items()]
    async with (
        picker(FLEXIBLE) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.server.port}") as channel,
    ):
        method: Any = channel.stream_stream(
            codec.METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString
        )
        call = method()
        headers = pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=pairs), end_of_stream=True)
        await call.write(pb.ProcessingRequest(request_headers=headers))
        answer = await call.read()
        call.cancel()
    assert list(answer.request_headers.response.header_mutation.remove_headers) == [name]
