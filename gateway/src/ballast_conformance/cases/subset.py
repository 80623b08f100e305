"""Subset hints: the only endpoints that a request may go to."""

from __future__ import annotations

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import UNKNOWN_ENDPOINT, expect_routed, expect_status
from ballast_conformance.messages import Metadata, subset
from ballast_conformance.verdicts import Level, expect

CASES = Cases("subset")
_TRIES = 4


@CASES.case("one", Level.MUST, protocol.HINT, "With a hint of one endpoint, that one is picked, and no other.")
async def one(bench: Bench) -> None:
    for endpoint in bench.endpoints(2)[:4]:
        for _ in range(_TRIES):
            said = await bench.ask(metadata=subset([endpoint]))
            expect(said.endpoints == [endpoint], endpoint, said.destination or said)


@CASES.case("some", Level.MUST, protocol.HINT, "With a hint of several endpoints, all that are named are among them.")
async def some(bench: Bench) -> None:
    hint = bench.endpoints(3)[1:]
    for _ in range(_TRIES):
        said = await bench.ask(metadata=subset(hint))
        expect_routed(said)
        expect(set(said.endpoints) <= set(hint), f"some of {', '.join(hint)}", said.destination)


@CASES.case("partly-unknown", Level.MUST, protocol.HINT, "Entries that are in no pool are passed over.")
async def partly_unknown(bench: Bench) -> None:
    known = bench.endpoints()[0]
    for _ in range(_TRIES):
        said = await bench.ask(metadata=subset([UNKNOWN_ENDPOINT, known]))
        expect(said.endpoints == [known], known, said.destination or said)


@CASES.case("unknown", Level.MUST, protocol.HINT, "If no endpoint of the hint is eligible: 503.")
async def unknown(bench: Bench) -> None:
    expect_status(await bench.ask(metadata=subset([UNKNOWN_ENDPOINT])), 503)


@CASES.case("empty", Level.MUST, protocol.HINT, "If the hint is an empty list: 503.")
async def empty(bench: Bench) -> None:
    expect_status(await bench.ask(metadata=subset([])), 503)


@CASES.case("port", Level.MUST, protocol.HINT, "Entries are ip:port: another port of the same address does not count.")
async def port(bench: Bench) -> None:
    known = bench.endpoints()[0]
    host, _, number = known.rpartition(":")
    ports = {int(each.rpartition(":")[2]) for each in bench.fleet.endpoints}
    other = next(each for each in range(int(number) % 65535 + 1, 65536) if each not in ports)
    expect_status(await bench.ask(metadata=subset([f"{host}:{other}"])), 503)


@CASES.case("without-body", Level.MUST, protocol.HINT, "The hint counts for requests without a body, too.")
async def without_body(bench: Bench) -> None:
    for endpoint in bench.endpoints(2)[:2]:
        for _ in range(_TRIES):
            said = await bench.ask_without_body(metadata=subset([endpoint]))
            expect(said.endpoints == [endpoint], endpoint, said.destination or said)


@CASES.case("without-body-empty", Level.MUST, protocol.HINT, "An empty hint refuses requests without a body, too: 503.")
async def without_body_empty(bench: Bench) -> None:
    expect_status(await bench.ask_without_body(metadata=subset([])), 503)


@CASES.case("string", Level.MAY, protocol.HINT, "A hint may be a string with commas, as Envoy's filters write it.")
async def string(bench: Bench) -> None:
    known = bench.endpoints()[0]
    for _ in range(_TRIES):
        said = await bench.ask(metadata=subset(f"{known},{UNKNOWN_ENDPOINT}"))
        expect(said.endpoints == [known], known, said.destination or said)


@CASES.case("first-message", Level.SHOULD, protocol.HINT, "A hint on the stream's first message alone counts.")
async def first_message(bench: Bench) -> None:
    """It is of the request, not of a message; Envoy repeats it on each, others need not."""
    for endpoint in bench.endpoints(2)[:2]:
        for _ in range(_TRIES):
            stream, body = await bench.stream(), bench.body()
            first = messages.request_headers(bench.post(body), modes=DUPLEX, metadata=subset([endpoint]))
            await stream.send(first, messages.request_body(body, end=True))
            said = await bench.answered(stream)
            expect(said.endpoints == [endpoint], endpoint, said.destination or said)


@CASES.case("not-from-headers", Level.MUST, protocol.HINT, "A client's header of the hint's name is no hint.")
async def not_from_headers(bench: Bench) -> None:
    said = await bench.ask(headers=((protocol.SUBSET, UNKNOWN_ENDPOINT),))
    expect_routed(said)
    expect(UNKNOWN_ENDPOINT not in said.endpoints, "an endpoint of the pool", said.destination)


@CASES.case("other-metadata", Level.MUST, protocol.HINT, "Metadata of other namespaces and keys is no hint.")
async def other_metadata(bench: Bench) -> None:
    noise: Metadata = {protocol.SUBSET_NAMESPACE: {"another-key": []}, "of.another.filter": {protocol.SUBSET: []}}
    expect_routed(await bench.ask(metadata=noise))
