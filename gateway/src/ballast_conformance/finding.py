"""What the suite finds out by itself: TLS, the health port, the model, endpoints."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import replace
from typing import Final

from ballast_conformance import messages, protocol
from ballast_conformance.bench import Address, Bench, Fleet, Plan
from ballast_conformance.grpc_call import NOT_FOUND, Call, End
from ballast_conformance.http2 import connect
from ballast_conformance.transcript import Transcript, request_answered

HEALTH_PORT: Final = 9003
"""Where pickers of the Gateway API Inference Extension serve health."""
_ASKED: Final = 32
"""Requests by which endpoints are found."""
_SHOWN: Final = 300


class NotFound(Exception):
    """The suite cannot begin; says what is missing."""


async def with_transport(host: str, port: int, tls: bool | None, timeout_s: float) -> Address:
    """The address, with TLS or without as its server speaks it. Raises `NotFound`."""
    problems = []
    for over_tls in (False, True) if tls is None else (tls,):
        try:
            made = await connect(host, port, tls=over_tls, timeout_s=timeout_s)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            silent = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else repr(error)
            problems.append(f"{'with' if over_tls else 'without'} TLS: {str(error) or silent}")
            continue
        await made.aclose()
        return Address(host, port, over_tls)
    raise NotFound(f"no HTTP/2 server at {Address(host, port)} ({'; '.join(problems)})")


async def health(picker: Address, told: tuple[str, int] | None, timeout_s: float) -> Address | None:
    """Where health is served: as told, on its usual port, or beside ext_proc. Raises `NotFound` if told wrongly."""
    if told is not None:
        return await with_transport(*told, None, timeout_s)
    try:
        return await with_transport(picker.host, HEALTH_PORT, None, timeout_s)
    except NotFound:
        return picker if await _serves_health(picker, timeout_s) else None


async def _serves_health(at: Address, timeout_s: float) -> bool:
    connection = await connect(at.host, at.port, tls=at.tls, timeout_s=timeout_s)
    try:
        call = Call(connection, protocol.HEALTH_CHECK, str(at))
        await call.send((b"",))  # a HealthCheckRequest of the server as a whole
        await call.half_close()
        heard = await call.receive(timeout_s)
    except TimeoutError:
        return False
    finally:
        await connection.aclose()
    return not isinstance(heard, End) or heard.status == NOT_FOUND


async def fleet(picker: Address, plan: Plan, *, model: str | None, endpoints: tuple[str, ...]) -> Fleet:
    """What was told, and what asking shows of the rest. Raises `NotFound` if the picker routes nothing."""
    if model is None:
        model = await _model(picker, plan, endpoints)
    known = Fleet(model=model, endpoints=endpoints, told=bool(endpoints))
    if endpoints:
        return known
    return replace(known, endpoints=await _endpoints(picker, plan, known))


async def _endpoints(picker: Address, plan: Plan, known: Fleet) -> tuple[str, ...]:
    """Those that requests of different prompts are sent to while all of them are in flight."""
    bench, found = Bench(picker, None, known, plan), set[str]()
    try:
        streams = [await bench.stream() for _ in range(_ASKED)]
        for number, stream in enumerate(streams):
            body = bench.body(f"{number} is the number of this prompt. " * 8)
            await stream.send(messages.request_headers(bench.post(body)), messages.request_body(body, end=True))
            said = await stream.until(request_answered)
            if said.destination is None and not found:
                raise NotFound(f"the picker does not route a request for model {known.model!r}: {_why(said)}")
            found.update(said.endpoints)
        for stream in streams:
            await bench.answered(stream)
    finally:
        await bench.close()
    return tuple(sorted(found))


async def _model(picker: Address, plan: Plan, endpoints: tuple[str, ...]) -> str:
    """The first model that an endpoint serves."""
    asked = list(endpoints)
    if not asked:
        bench = Bench(picker, None, Fleet(model=""), plan)
        try:
            asked = (await bench.ask_without_body()).endpoints
        finally:
            await bench.close()
    for endpoint in asked:
        host, _, port = endpoint.rpartition(":")
        try:
            name = await _first_model(host.strip("[]"), int(port), plan.timeout_s)
        except (OSError, ValueError, LookupError, TypeError, TimeoutError):
            continue
        return name
    where = ", ".join(asked) or "no endpoint that the picker names"
    raise NotFound(f"no model name: {where} answers GET /v1/models; name one with --model")


async def _first_model(host: str, port: int, timeout_s: float) -> str:
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(b"GET /v1/models HTTP/1.0\r\nHost: %b\r\n\r\n" % host.encode())
            answer = await reader.read()
        finally:
            writer.close()
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    return str(document["data"][0]["id"])


def _why(said: Transcript) -> str:
    if said.immediate is None:
        return str(said)
    return f"{said.status} {bytes(said.immediate.body)[:_SHOWN].decode('utf-8', 'replace')}"
