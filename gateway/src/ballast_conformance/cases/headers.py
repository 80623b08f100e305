"""Headers and attributes that a picker may use, or has never heard of."""

from __future__ import annotations

from ballast_conformance import messages, protocol
from ballast_conformance.bench import DUPLEX, Bench
from ballast_conformance.case import Cases
from ballast_conformance.cases.common import expect_routed
from ballast_conformance.verdicts import Level

CASES = Cases("headers")


@CASES.case("objective", Level.SHOULD, protocol.STREAMING, "A request with an unknown objective is routed.")
async def objective(bench: Bench) -> None:
    for name in protocol.OBJECTIVES:
        expect_routed(await bench.ask(headers=((name, "no-such-objective"),)), f"routed with {name}")


@CASES.case("fairness", Level.SHOULD, protocol.STREAMING, "A request with a fairness id is routed.")
async def fairness(bench: Bench) -> None:
    for name in protocol.FAIRNESS_IDS:
        expect_routed(await bench.ask(headers=((name, "tenant-1"),)), f"routed with {name}")


@CASES.case("binary", Level.MUST, protocol.MUTATION, "Values that are no UTF-8 are taken: raw_value is bytes.")
async def binary(bench: Bench) -> None:
    expect_routed(await bench.ask(headers=(("x-binary", b"caf\xe9\xff\x80"),)))


@CASES.case("many", Level.MUST, protocol.REQUEST, "Many, long, empty and repeated headers are taken.")
async def many(bench: Bench) -> None:
    noise = (*((f"x-noise-{number}", "v" * 200) for number in range(100)), ("x-empty", ""), ("x-twice", "a"))
    expect_routed(await bench.ask(headers=(*noise, ("x-twice", "b"))))


@CASES.case("unknown-attributes", Level.MUST, protocol.REQUEST, "Attributes of any content change nothing.")
async def unknown_attributes(bench: Bench) -> None:
    stream, body = await bench.stream(), bench.body()
    first = messages.with_attributes(messages.request_headers(bench.post(body), modes=DUPLEX))
    await stream.send(first, messages.with_attributes(messages.request_body(body, end=True)))
    expect_routed(await bench.answered(stream))


@CASES.case("unknown-metadata", Level.MUST, protocol.REQUEST, "Metadata of any content changes nothing.")
async def unknown_metadata(bench: Bench) -> None:
    noise: messages.Metadata = {
        "of.another.filter": {"a": [1, None, {"b": "c"}]},
        protocol.NAMESPACE: {"weight": 3, "canary": True},
    }
    expect_routed(await bench.ask(metadata=noise))


@CASES.case("unknown-fields", Level.MUST, protocol.REQUEST, "Fields of newer versions of the messages are passed over.")
async def unknown_fields(bench: Bench) -> None:
    """Field 1000 of `ProcessingRequest`, a string."""
    stream, body = await bench.stream(), bench.body()
    first = messages.request_headers(bench.post(body), modes=DUPLEX).SerializeToString()
    last = messages.request_body(body, end=True).SerializeToString()
    field = b"\xc2\x3e\x03new"
    await stream.send_raw((first + field, field + last))
    expect_routed(await bench.answered(stream))


@CASES.case("repeated-config", Level.MUST, protocol.CONFIG, "protocol_config on each message is taken.")
async def repeated_config(bench: Bench) -> None:
    """Envoy sends it with the first message only; others are free to repeat it."""
    stream, body = await bench.stream(), bench.body()
    first = messages.request_headers(bench.post(body), modes=DUPLEX)
    last = messages.request_body(body, end=True)
    last.protocol_config.CopyFrom(first.protocol_config)
    await stream.send(first, last)
    expect_routed(await bench.answered(stream))
