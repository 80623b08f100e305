"""More requests than engines can serve: 1 to 20 times capacity for eight seconds, then half of it for eight more.

One engine with eight places behind the gateway's defaults; short prompts, and a mix with one long prompt in five. What
counts is goodput: requests a second whose first token came within the bound (`--slo`), over that at capacity. After the
burst the gateway has recovered when every request is served as soon as on an idle fleet, up to a second. `greedy`: one
API key asks for 20 times capacity, another for a quarter of it. `leaving`: all clients of a burst leave after a second.

One burst of mixed prompts serves some 40 requests, a few long ones more or less among them: `--bursts 5` has five of
each, with other prompts, and means.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
from dataclasses import dataclass, replace
from http import HTTPStatus

from bench.reliability.kit.asking import Ask, ask
from bench.reliability.kit.client import Fate, Outcome, at_rate, send
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, percentile, tally

FACTORS = (1, 2, 5, 10, 20)
PROMPTS = ("short", "mixed")
BURST_S, AFTER_S = 8.0, 8.0
PLACES, OUTPUT_TOKENS = 8, 80
SHORT_TOKENS, LONG_TOKENS = 200, 12_000
_BOUND_S, _AGAIN_S = 150.0, 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    """The bound of TTFT that counts as good."""
    parser.add_argument("--slo", type=float, default=10.0, help="seconds to the first token that count as good")
    parser.add_argument("--bursts", type=int, default=1, help="of each load, each with other prompts")


async def run(lab: Lab) -> list[Row]:
    """A row for each factor and kind of prompt, one for two keys, and one for clients that leave."""
    await lab.start_engines("f0", flags=("--max-num-seqs", str(PLACES)))
    rows = []
    for prompts in PROMPTS:
        wanted = list(lab.cases(*(f"{prompts} {factor}x" for factor in FACTORS)))
        if wanted:
            capacity_rps = await _capacity_rps(lab, prompts)
            factors = [int(case.split()[1][:-1]) for case in wanted]
            rows += [await _burst(lab, prompts, factor, capacity_rps) for factor in factors]
    if list(lab.cases("greedy", "leaving")):
        capacity_rps = await _capacity_rps(lab, "short")
        rows += [await _greedy(lab, capacity_rps) for _ in lab.cases("greedy")]
        rows += [await _leaving(lab, capacity_rps) for _ in lab.cases("leaving")]
    return rows


def _asks(lab: Lab, prompts: str, count: int, first: int = 0, turn: int = 0) -> list[Ask]:
    """Those of a case, in the burst of this number: the same for each installation."""
    seed = lab.options.seed + turn
    rng = random.Random(f"{prompts} {first} {seed}")
    lengths = [LONG_TOKENS if prompts == "mixed" and rng.random() < 0.2 else SHORT_TOKENS for _ in range(count)]
    return [
        ask(first + number, prompt_tokens=tokens, output_tokens=OUTPUT_TOKENS, seed=seed)
        for number, tokens in enumerate(lengths)
    ]


async def _capacity_rps(lab: Lab, prompts: str) -> float:
    """Requests a second while as many are asked for at a time as there are places. One that is shed (429) is asked
    again; raises `RuntimeError` for any other that is not whole, `TimeoutError` if they take too long."""
    asks = _asks(lab, prompts, 6 * PLACES, first=90_000)
    async with lab.gateway("capacity") as gateway:
        loop = asyncio.get_running_loop()
        turns, begun_s = asyncio.Semaphore(PLACES), loop.time()

        async def one(number: int) -> None:
            async with turns:
                for again in itertools.count():
                    outcome = await send(gateway.port, asks[number], f"c-{number}-{again}", bound_s=_BOUND_S)
                    if _whole(outcome):
                        return
                    if outcome.status != HTTPStatus.TOO_MANY_REQUESTS:
                        raise RuntimeError(f"capacity cannot be measured: {outcome.fate}, {outcome.reason}")
                    await asyncio.sleep(_AGAIN_S)

        async with asyncio.timeout(_BOUND_S):
            await asyncio.gather(*map(one, range(len(asks))))
        return len(asks) / (loop.time() - begun_s)


@dataclass(frozen=True)
class _Burst:
    """What one burst came to."""

    outcomes: list[Outcome]
    good: int
    """Requests of it with their first token in time."""
    late_s: float
    """When, after its end, the last request was late; 0 if none was."""
    in_flight: float
    """What the ledger still has."""


async def _burst(lab: Lab, prompts: str, factor: int, capacity_rps: float) -> Row:
    bursts = [await _one_burst(lab, prompts, factor, capacity_rps, turn) for turn in range(lab.options.bursts)]
    goodput_rps = [each.good / BURST_S for each in bursts]
    late_s = [each.late_s for each in bursts]
    outcomes = [outcome for each in bursts for outcome in each.outcomes]
    mean_rps = statistics.fmean(goodput_rps)
    notes: dict[str, object] = {
        "capacity": f"{capacity_rps:.1f}/s",
        "goodput": f"{mean_rps:.2f}/s, {mean_rps / capacity_rps:.2f} of capacity" + _spread(goodput_rps, "/s", 2),
        "recovered after": f"{statistics.fmean(late_s):.1f} s"
        + (" (never)" if max(late_s) > AFTER_S - 1 else "")
        + _spread(late_s, " s", 1),
        "retry-after": _retry_after(outcomes),
        "left in the ledger": max(each.in_flight for each in bursts),
    }
    return tally(f"{prompts} {factor}x", outcomes, notes=notes)


async def _one_burst(lab: Lab, prompts: str, factor: int, capacity_rps: float, turn: int) -> _Burst:
    rate = factor * capacity_rps
    during_asks = _asks(lab, prompts, int(rate * BURST_S), turn=turn)
    after_asks = _asks(lab, "short", int(0.5 * capacity_rps * AFTER_S), first=50_000, turn=turn)
    async with lab.gateway() as gateway:
        begun_s = asyncio.get_running_loop().time()
        during = asyncio.create_task(at_rate(gateway.port, during_asks, rate, bound_s=_BOUND_S))
        await asyncio.sleep(BURST_S)
        after = await at_rate(gateway.port, after_asks, 0.5 * capacity_rps, bound_s=_BOUND_S, name="a")
        outcomes = await during
        ended_s = begun_s + BURST_S
        late = [each.asked_s - ended_s for each in after if each.ttft_s is None or each.ttft_s > 1.0]
        good = sum(each.ttft_s is not None and each.ttft_s <= lab.options.slo for each in outcomes if _whole(each))
        return _Burst(outcomes, good, max(late, default=0.0), await gateway.in_flight())


def _spread(values: list[float], unit: str, digits: int) -> str:
    """From the least to the most, where there are several."""
    return f" ({min(values):.{digits}f} to {max(values):.{digits}f}{unit})" if len(values) > 1 else ""


async def _greedy(lab: Lab, capacity_rps: float) -> Row:
    """The row is the modest key's; the greedy one's is in the notes."""
    greedy_asks = [replace(each, key="greedy") for each in _asks(lab, "short", int(20 * capacity_rps * BURST_S))]
    modest_asks = [replace(each, key="modest") for each in _asks(lab, "short", int(0.25 * capacity_rps * 7), 70_000)]
    async with lab.gateway() as gateway:
        greedy = asyncio.create_task(
            at_rate(gateway.port, greedy_asks, 20 * capacity_rps, bound_s=_BOUND_S, name="greedy")
        )
        await asyncio.sleep(1.0)
        modest = await at_rate(gateway.port, modest_asks, 0.25 * capacity_rps, bound_s=_BOUND_S, name="modest")
        others = await greedy
        whole, served = sum(map(_whole, others)), [each.ttft_s for each in others if each.ttft_s is not None]
        said = f"{whole} of {len(others)} whole, TTFT p99 {percentile(served, 0.99) or 0.0:.2f} s"
        return tally("greedy", modest, notes={"the greedy key": said})


async def _leaving(lab: Lab, capacity_rps: float) -> Row:
    asks = _asks(lab, "short", int(60 * capacity_rps))
    async with lab.gateway() as gateway:

        async def one(number: int) -> Outcome:
            await asyncio.sleep(number / (60 * capacity_rps))
            return await send(gateway.port, asks[number], f"l-{number}", bound_s=_BOUND_S, leave_after_s=1.0)

        outcomes = list(await asyncio.gather(*map(one, range(len(asks)))))
        return tally("leaving", outcomes, notes=await _left_behind(lab, gateway))


async def _left_behind(lab: Lab, gateway: GatewayProcess) -> dict[str, object]:
    """What the gateway and the engine still have, once they had a second for it."""
    await asyncio.sleep(1.0)
    engine = lab.engines["f0"]
    running = await engine.metric("vllm:num_requests_running") + await engine.metric("vllm:num_requests_waiting")
    waiting = sum((await gateway.metrics("ballast_gateway_requests_waiting")).values())
    return {"left in the ledger": await gateway.in_flight(), "left waiting": waiting, "left in the engine": running}


def _whole(outcome: Outcome) -> bool:
    return outcome.fate is Fate.WHOLE


def _retry_after(outcomes: list[Outcome]) -> str:
    told = sorted(each.retry_after_s for each in outcomes if each.retry_after_s is not None)
    return f"{told[0]} to {told[-1]} s" if told else "-"
