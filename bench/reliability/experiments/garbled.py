"""One of three decodes sends answers that break or are none: what do its clients get?

60 requests arrive evenly, three of four as streams, half of them of a kind that cannot go on at another engine (a
sampling seed). The decode's answers are reset, end too early, hang up in their framing, or have garbage in between.
"""

from __future__ import annotations

from typing import Any

from bench.reliability.kit.asking import ask
from bench.reliability.kit.client import Fate, at_rate
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

FAULTS: dict[str, dict[str, Any]] = {
    "reset after 5 tokens": {"fault": "reset", "after": 5},
    "reset after its head": {"fault": "reset", "after": "head"},
    "error event after 5 tokens": {"fault": "error-event", "after": 5},
    "early end": {"fault": "end", "after": 5},
    "wrong content-length": {"fault": "content-length", "off_by": 16},
    "wrong chunk size": {"fault": "chunk-framing", "after": 5},
    "an event that is no JSON": {"fault": "garbage", "garbage": "not-json", "after": 5},
    "an event that breaks off": {"fault": "garbage", "garbage": "broken-token-ids", "after": 5},
    "bytes that are no event": {"fault": "garbage", "garbage": "not-sse", "after": 5},
    "an event of 1 MiB": {"fault": "garbage", "garbage": "huge", "after": 5},
}


async def run(lab: Lab) -> list[Row]:
    """A row for each fault."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    return [await _case(lab, case) for case in lab.cases(*FAULTS)]


async def _case(lab: Lab, case: str) -> Row:
    bad = lab.engines["d0"]
    asks = [
        ask(at, output_tokens=20, stream=at % 4 != 0, chat=at % 3 == 0, replayable=at % 2 == 0, seed=lab.options.seed)
        for at in range(60)
    ]
    await bad.misbehave(FAULTS[case])
    try:
        async with lab.gateway() as gateway:
            outcomes = await at_rate(gateway.port, asks, 20.0, bound_s=30.0)
            given = await bad.given()
    finally:
        await bad.misbehave()
    tied = [each for each in outcomes if each.ask.stream and not each.ask.replayable]
    notes: dict[str, object] = {"requests that the bad engine got": given}
    notes["streams that cannot go on"] = f"{len(tied)}, not whole {sum(each.fate is not Fate.WHOLE for each in tied)}"
    return tally(case, outcomes, notes=notes)
