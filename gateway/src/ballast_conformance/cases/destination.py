"""Where a request goes: header, dynamic metadata, fall-backs."""

from __future__ import annotations

from ballast_conformance import messages, protocol
from ballast_conformance.bench import Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import UNKNOWN_ENDPOINT, expect_routed, is_endpoint
from ballast_conformance.transcript import headers_answered
from ballast_conformance.verdicts import Failed, Level, Skipped, expect

CASES = Cases("destination")
_TRIES = 8


@CASES.case("header", Level.MUST, protocol.TO_PROXY, "The endpoint is in the header x-gateway-destination-endpoint.")
async def in_header(bench: Bench) -> None:
    said = await bench.ask()
    expect(bool(said.in_header), f"a header mutation sets {protocol.DESTINATION}", said)


@CASES.case("metadata", Level.MUST, protocol.TO_PROXY, "The endpoint is in the dynamic metadata of envoy.lb.")
async def in_metadata(bench: Bench) -> None:
    said = await bench.ask()
    expect(bool(said.in_metadata), f"dynamic_metadata has envoy.lb / {protocol.DESTINATION}, a string", said)


@CASES.case("agreement", Level.MUST, protocol.TO_PROXY, "Header and metadata have the same value.")
async def agreement(bench: Bench) -> None:
    for _ in range(_TRIES):
        said = await bench.ask()
        if said.in_header is None or said.in_metadata is None:
            raise Skipped("the picker does not tell both")
        expect(said.in_header == said.in_metadata, f"{said.in_header} in both", f"{said.in_metadata} in the metadata")


@CASES.case("format", Level.MUST, protocol.TO_PROXY, "The value is ip:port, or several with commas between.")
async def well_formed(bench: Bench) -> None:
    said = await bench.ask()
    expect_routed(said)
    for entry in (said.destination or "").split(","):
        expect(is_endpoint(entry.strip()), "ip:port[,ip:port...]", said.destination)


@CASES.case("members", Level.MUST, protocol.HINT, "Without a hint, endpoints come from the pool.")
async def members(bench: Bench) -> None:
    if not bench.fleet.told:
        raise Skipped("needs all endpoints of the pool, see --endpoints")
    for _ in range(_TRIES):
        said = await bench.ask()
        expect_routed(said)
        strangers = set(said.endpoints) - set(bench.fleet.endpoints)
        expect(not strangers, f"some of {', '.join(bench.fleet.endpoints)}", ", ".join(sorted(strangers)))


@CASES.case("fallbacks", Level.SHOULD, protocol.TO_PROXY, "Fall-backs are further endpoints, in order, none twice.")
async def fallbacks(bench: Bench) -> None:
    said = await bench.ask()
    expect_routed(said)
    if len(said.endpoints) < 2:
        raise Skipped("the picker names no fall-backs")
    expect(len(set(said.endpoints)) == len(said.endpoints), "each endpoint once", said.destination)


@CASES.case("overwrites-client", Level.MUST, protocol.TO_PROXY, "A destination that the client sends does not survive.")
async def overwrites_client(bench: Bench) -> None:
    said = await bench.ask(headers=((protocol.DESTINATION, UNKNOWN_ENDPOINT),))
    expect_routed(said)
    expect(UNKNOWN_ENDPOINT not in said.endpoints, "an endpoint of the picker's own choice", said.destination)
    if not said.set_headers(protocol.DESTINATION):
        raise Failed("the header is overwritten", "the client's header is left as it is")
    expect(said.overwrites(protocol.DESTINATION), "the header is overwritten", "appended, or added only where absent")


@CASES.case(
    "without-body", Level.MUST, protocol.TO_PROXY, "A request without a body is routed as well, in both places."
)
async def without_body(bench: Bench) -> None:
    said = await bench.ask_without_body()
    expect_routed(said)
    expect(said.in_header == said.in_metadata, "header and metadata agree", f"{said.in_header}, {said.in_metadata}")


@CASES.case("without-body-unanswered", Level.MUST, protocol.DUPLEX, "A request without a body gets no body back.")
async def no_body_back(bench: Bench) -> None:
    stream = await bench.stream()
    await stream.send(messages.request_headers(bench.get(), end=True))
    await stream.until(headers_answered)
    said = await stream.quiet()
    expect(not said.of("request_body") and not said.of("request_trailers"), "headers alone", said)


@CASES.case("client-control-headers", Level.SHOULD, protocol.TO_PROXY, "Clients cannot set what pickers tell engines.")
async def client_control_headers(bench: Bench) -> None:
    """Names of llm-d's sidecar, which fetches KV from wherever they say."""
    name = "x-prefiller-host-port"
    said = await bench.ask(headers=((name, UNKNOWN_ENDPOINT),))
    expect_routed(said)
    gone = name in said.removed_headers() or said.overwrites(name)
    expect(gone, f"{name} is removed or overwritten", "it is left as the client sent it")


@CASES.case("request-id", Level.SHOULD, protocol.MUTATION, "An x-request-id that is there stays.")
async def request_id(bench: Bench) -> None:
    own = "the-clients-own"
    said = await bench.ask(headers=(("x-request-id", own),))
    expect_routed(said)
    now = said.header("x-request-id") or own
    expect("x-request-id" not in said.removed_headers(), "left alone", "removed")
    expect(now == own, own, now)
