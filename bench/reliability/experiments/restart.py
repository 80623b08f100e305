"""The gateway and its engines are told to end (SIGTERM) in the middle of their work.

- long streams: 20 streams of 40 s run at one gateway when it gets SIGTERM.
- rolling: two gateways are restarted one after the other under ten requests a second. Clients know both, and ask the
  other one where they get no connection, or a 503 that says that this one ends.
- engine: one of three decodes gets SIGTERM and lingers for five seconds; until its end it answers with an error event
  in place of the first token. It comes back at once.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from dataclasses import replace

from bench.reliability.kit.asking import Ask, ask
from bench.reliability.kit.client import Fate, Outcome, at_rate, send
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

LONG_STREAMS, LONG_TOKENS = 20, 2000
RATE_RPS, ROLLING_S = 10.0, 24.0
ENGINE_S = 12.0
LINGERS = {"fault": "sigterm", "linger_s": 5}
GRACE = {"limits": {"drainGraceS": 1}}
BOUND_S = 90.0


async def run(lab: Lab) -> list[Row]:
    """A row for each case."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    cases = {"long streams": _long_streams, "rolling": _rolling, "engine": _engine}
    return [await cases[case](lab) for case in lab.cases(*cases)]


async def _long_streams(lab: Lab) -> Row:
    asks = [_ask(number, lab, tokens=LONG_TOKENS) for number in range(LONG_STREAMS)]
    asks = [replace(each, body={**each.body, "stream": True}) for each in asks]
    async with lab.gateway(settings=GRACE) as gateway:
        streams = asyncio.create_task(at_rate(gateway.port, asks, 20.0, bound_s=BOUND_S))
        await asyncio.sleep(3.0)
        gateway.program.signal(signal.SIGTERM)
        outcomes = await streams
        async with asyncio.timeout(BOUND_S):
            status = await gateway.program.ended()
        return tally("long streams", outcomes, notes={"exit status": status})


async def _rolling(lab: Lab) -> Row:
    async with (
        lab.gateway("one", settings=GRACE) as one,
        lab.gateway("two", settings=GRACE) as two,
    ):
        number = int(RATE_RPS * ROLLING_S)
        load = [asyncio.create_task(_ask_any((one, two), at, _ask(at, lab), at / RATE_RPS)) for at in range(number)]
        for gateway in (one, two):
            await asyncio.sleep(2.0)
            gateway.program.signal(signal.SIGTERM)
            async with asyncio.timeout(BOUND_S):
                await gateway.program.ended()
            await gateway.start()
        outcomes = await asyncio.gather(*load)
        return tally(
            "rolling", [outcome for outcome, _ in outcomes], notes={"asked again": sum(n for _, n in outcomes)}
        )


async def _ask_any(gateways: tuple[GatewayProcess, ...], number: int, what: Ask, at_s: float) -> tuple[Outcome, int]:
    """Ask one gateway after another until one takes the request. Returns how often it was asked again, too."""
    await asyncio.sleep(at_s)
    for again in itertools.count():
        gateway = gateways[(number + again) % len(gateways)]
        outcome = await send(gateway.port, what, f"r-{number}-{again}", bound_s=BOUND_S)
        unreachable = outcome.fate is Fate.BROKEN and outcome.reason.startswith("no connection")
        ends = outcome.fate is Fate.REFUSED and outcome.reason == "gateway-shutdown"
        if again >= 20 or not (unreachable or ends):
            return outcome, again
        await asyncio.sleep(0.1 * (again > 0))
    raise AssertionError


async def _engine(lab: Lab) -> Row:
    engine = lab.engines["d0"]
    asks = [_ask(number, lab) for number in range(int(RATE_RPS * ENGINE_S))]
    async with lab.gateway() as gateway:
        await engine.misbehave(LINGERS)
        load = asyncio.create_task(at_rate(gateway.port, asks, RATE_RPS, bound_s=BOUND_S))
        await asyncio.sleep(2.0)
        engine.program.signal(signal.SIGTERM)
        await engine.program.ended()
        await engine.start()
        outcomes = await load
        log = {entry["request_id"]: entry["outcome"] for entry in gateway.requests()}
        notes: dict[str, object] = {
            "booked as completed and not whole": sum(_is_misbooked(each, log) for each in outcomes)
        }
        return tally("engine", outcomes, notes=notes)


def _is_misbooked(outcome: Outcome, log: dict[str, str]) -> bool:
    return outcome.fate is not Fate.WHOLE and log.get(outcome.request_id) == "completed"


def _ask(number: int, lab: Lab, *, tokens: int = 150) -> Ask:
    return ask(number, output_tokens=tokens, stream=number % 4 != 0, chat=number % 3 == 0, seed=lab.options.seed)
