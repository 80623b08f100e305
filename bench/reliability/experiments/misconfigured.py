"""One of three decodes, or of two prefills, is misconfigured: who gets its errors?

120 requests arrive evenly, three of four as streams, at two prefills and three decodes. One engine answers with another
API key, another model name, a smaller context, 429, 500, or with 200 and then an error event.
"""

from __future__ import annotations

import argparse
from typing import Any

from bench.reliability.kit.asking import ask
from bench.reliability.kit.client import at_rate
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

FAULTS: dict[str, dict[str, Any]] = {
    "another key (401)": {"fault": "wrong-key", "scope": {"paths": ["/v1/completions", "/v1/chat/completions"]}},
    "another model (404)": {"fault": "wrong-model"},
    "smaller context (400)": {"fault": "small-context", "tokens": 100},
    "too many requests (429)": {"fault": "status", "status": 429},
    "server error (500)": {"fault": "status", "status": 500},
    "200, then an error": {"fault": "error-event"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones."""
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--rate", type=float, default=24.0, help="requests a second")


async def run(lab: Lab) -> list[Row]:
    """A row for each fault and role."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    cases = {f"{role} d0" if role == "decode" else f"{role} p0": role[0] + "0" for role in ("decode", "prefill")}
    names = {f"{where}: {fault}": (engine, fault) for where, engine in cases.items() for fault in FAULTS}
    return [await _case(lab, case, *names[case]) for case in lab.cases(*names)]


async def _case(lab: Lab, case: str, name: str, fault: str) -> Row:
    options, bad = lab.options, lab.engines[name]
    asks = [ask(at, stream=at % 4 != 0, chat=at % 3 == 0, seed=options.seed) for at in range(options.requests)]
    await bad.misbehave(FAULTS[fault])
    try:
        async with lab.gateway() as gateway:
            outcomes = await at_rate(gateway.port, asks, options.rate, bound_s=30.0)
            return tally(case, outcomes, notes={"requests that the bad engine got": await bad.given()})
    finally:
        await bad.misbehave()
