"""What a picker loses by seeing less: the same requests behind a real Envoy, by what it shows of their responses.

200 requests in a row that is the same for each mode, with prompts of 500 to 12,000 tokens, to three engines.
`--ballast` tries the picker of another installation. Needs Envoy: `make envoy`.
"""

from __future__ import annotations

import argparse

import numpy as np

from bench.reliability.kit.asking import Ask, ask
from bench.reliability.kit.client import Fate, Outcome, at_rate
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, percentile, tally
from tests.support.envoy import EnvoySetup, PickerAt, envoy

MODES = {
    "full duplex": EnvoySetup(),
    "headers and trailers": EnvoySetup(response_body="NONE"),
    "headers": EnvoySetup(response_body="NONE", trailers=False),
    "no response": EnvoySetup(response_body=None),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones."""
    parser.add_argument("--rps", type=float, default=6.0, help="requests a second")
    parser.add_argument("--requests", type=int, default=200, help="in each mode")


async def run(lab: Lab) -> list[Row]:
    """A row for each mode."""
    await lab.start_engines("f0", "f1", "f2")
    rng = np.random.default_rng(lab.options.seed)
    prompts = np.clip(rng.lognormal(7.6, 0.8, lab.options.requests), 500, 12_000).astype(int).tolist()
    outputs = np.clip(rng.lognormal(4.0, 1.0, lab.options.requests), 8, 600).astype(int).tolist()
    return [await _case(lab, mode, _asks(prompts, outputs, place)) for place, mode in enumerate(lab.cases(*MODES))]


async def _case(lab: Lab, mode: str, asks: list[Ask]) -> Row:
    async with lab.gateway("picker", {"face": "Picker"}) as picker:
        at = [PickerAt(picker.ports["ext_proc"], picker.ports["grpc_health"])]
        async with envoy(at, MODES[mode], picker.program.log.parent / "envoy") as proxy:
            port = int(proxy.url.rpartition(":")[2])
            outcomes = await at_rate(port, asks, lab.options.rps, bound_s=60.0)
        return tally(mode, outcomes, notes=_notes(outcomes))


def _notes(outcomes: list[Outcome]) -> dict[str, object]:
    whole = [each for each in outcomes if each.fate is Fate.WHOLE]
    ttfts = [each.ttft_s for each in whole if each.ttft_s is not None]
    lasted = percentile([each.ended_s - each.asked_s for each in whole], 0.5) or 0.0
    return {"ttft_mean_s": round(sum(ttfts) / max(1, len(ttfts)), 3), "e2e_p50_s": round(lasted, 2)}


def _asks(prompts: list[int], outputs: list[int], place: int) -> list[Ask]:
    """Each mode has prompts of its own, of the same lengths: no engine has another mode's prefixes."""
    return [
        ask(number, prompt_tokens=prompt, output_tokens=output, seed=1000 + place)
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]
