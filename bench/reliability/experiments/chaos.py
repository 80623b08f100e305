"""Everything at once: faults of engines, restarts of gateways and pickers, bursts on a real trace, by a seed.

Two prefills, three decodes and two gateways, one of which moves running streams. Engines are killed, stopped, frozen,
misconfigured, reset, slowed, trickle or send garbage; gateways drain and start again one after the other, and clients
ask the other one meanwhile. Beside them two pickers behind Envoy, where it is installed, die one after the other, in
front of two engines that are well. It fails where a request that can go on elsewhere broke, any answer lost or doubled
a token, anything was stuck, a gateway answered 500 or logged an error, or where ledgers, sockets or memory are not back
to where they were. The schedule of faults and the traffic follow from --seed; a run that failed prints its timeline.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from bench.reliability.chaos import afterwards
from bench.reliability.chaos.behind_envoy import Front, behind_envoy, there_is_envoy
from bench.reliability.chaos.schedule import Fault, schedule
from bench.reliability.chaos.traffic import Arrival, arrivals, burst, source
from bench.reliability.kit.asking import ask
from bench.reliability.kit.client import Fate, Outcome, at_rate, send
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.lab import Lab
from bench.reliability.kit.tally import Row, tally

BOUND_S = 60.0
WARM = 10_000_000
"""Number of the first prompt that comes before the run."""
DRAIN_S = 90.0
NOTICED_S = 0.5
"""So long do clients go on to ask a gateway that drains, as a cluster's endpoints lag behind; its grace is longer."""
ENVOY_SHARE, ENVOY_SEED = 0.3, 1_000_000
"""Traffic behind Envoy beside the other, and what its seed differs by."""
SETTINGS: dict[str, Any] = {"limits": {"drainGraceS": 1.5, "maxRetries": 6}}
"""Three faults in one request's life are common here: each strikes every few seconds, and not every few days."""
MOVES: dict[str, Any] = {**SETTINGS, "policy": {"rescheduling": {"type": "ares"}}}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones."""
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second on average")


async def run(lab: Lab) -> list[Row]:
    """One row."""
    await lab.start_engines("p0", "p1", "d0", "d1", "d2")
    async with AsyncExitStack() as stack:
        settings = {"g0": SETTINGS, "g1": MOVES}
        gateways = [await stack.enter_async_context(lab.gateway(name, settings[name])) for name in settings]
        front = await stack.enter_async_context(behind_envoy(lab)) if there_is_envoy() else None
        return [await Chaos(lab, gateways, front).run()]


class Chaos:
    """One run."""

    def __init__(self, lab: Lab, gateways: list[GatewayProcess], front: Front | None) -> None:
        options = lab.options
        self._lab = lab
        self._gateways = gateways
        self._front = front
        self._pickers = front.pickers if front is not None else []
        self._serving = list(gateways)
        self._turn = 0
        self._seconds = 60.0 * options.minutes
        self._names = {each.program.name: each for each in [*gateways, *self._pickers]}
        self._faults = schedule(
            options.seed,
            self._seconds,
            [each.program.name for each in gateways],
            [each.program.name for each in self._pickers],
        )
        self._bursts = 0
        self._outcomes: list[Outcome] = []
        self._behind_envoy: list[Outcome] = []
        self._struck: list[tuple[float, str]] = []
        self._problems: list[str] = []
        self._begun_s = 0.0

    async def run(self) -> Row:
        """Everything, and the row of it."""
        engines = list(self._lab.engines.values())
        for gateway in self._gateways:
            await at_rate(gateway.port, [ask(WARM + at) for at in range(20)], 20.0, bound_s=BOUND_S, name="warm")
        all_gateways = list(self._names.values())
        self._problems += await afterwards.settled(all_gateways, engines, {})
        await asyncio.sleep(6.0)  # until pooled connections are closed
        before = {gateway: afterwards.holdings(gateway) for gateway in self._gateways}
        self._begun_s = asyncio.get_running_loop().time()
        lanes = {fault.lane for fault in self._faults}
        await asyncio.gather(self._traffic(), self._traffic_behind_envoy(), *map(self._lane, sorted(lanes)))
        most = {gateway: held.files for gateway, held in before.items()}
        self._problems += await afterwards.settled(all_gateways, engines, most)
        for gateway, held in before.items():
            self._problems += afterwards.grown(gateway, held)
        for gateway in all_gateways:
            self._problems += afterwards.complaints(gateway)
        self._problems += map(self._told, filter(_is_a_fault_of_ours, self._outcomes))
        self._problems += [self._told(each) for each in self._behind_envoy if each.fate not in (Fate.WHOLE, Fate.LEFT)]
        return self._row()

    # --- traffic ----------------------------------------------------------------------------------------------------

    async def _traffic(self) -> None:
        options = self._lab.options
        await self._ask_all(arrivals(options.seed, self._seconds, options.rate), "r")

    async def _traffic_behind_envoy(self) -> None:
        options, front = self._lab.options, self._front
        if front is not None:

            async def one(number: int, arrival: Arrival) -> None:
                await asyncio.sleep(arrival.at_s)
                leaves = arrival.leaves_after_s
                name = f"envoy-{number}"
                outcome = await send(front.port, arrival.ask, name, bound_s=BOUND_S, leave_after_s=leaves)
                self._behind_envoy.append(outcome)

            coming = arrivals(options.seed + ENVOY_SEED, self._seconds, options.rate * ENVOY_SHARE)
            await asyncio.gather(*(one(number, each) for number, each in enumerate(coming)))

    async def _ask_all(self, coming: Iterable[Arrival], name: str) -> None:
        await asyncio.gather(*(self._ask(each, f"{name}-{number}") for number, each in enumerate(coming)))

    async def _ask(self, arrival: Arrival, request_id: str) -> None:
        await asyncio.sleep(arrival.at_s)
        self._turn += 1
        gateway = self._serving[self._turn % len(self._serving)]
        leaves = arrival.leaves_after_s
        outcome = await send(gateway.port, arrival.ask, request_id, bound_s=BOUND_S, leave_after_s=leaves)
        outcome.reason = f"{outcome.reason} ({gateway.program.name})" if outcome.reason else ""
        self._outcomes.append(outcome)

    # --- faults -----------------------------------------------------------------------------------------------------

    async def _lane(self, lane: str) -> None:
        for fault in self._faults:
            if fault.lane == lane:
                await asyncio.sleep(self._begun_s + fault.at_s - asyncio.get_running_loop().time())
                self._note(str(fault).split("s  ", 1)[1])
                await self._strike(fault)
                self._note(f"{fault.target}: {fault.kind} is over")

    async def _strike(self, fault: Fault) -> None:
        if fault.kind == "restart":
            await self._restart(self._names[fault.target])
        elif fault.kind == "burst":
            self._bursts += 1
            await self._ask_all(burst(self._lab.options.seed, self._bursts), f"burst{self._bursts}")
        elif fault.lane == "pickers":
            await self._names[fault.target].kill()
            await self._names[fault.target].start()
        else:
            await self._break_engine(fault)

    async def _break_engine(self, fault: Fault) -> None:
        engine = self._lab.engines[fault.target]
        match fault.kind:
            case "kill" | "terminate":
                engine.program.signal(signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
                await engine.program.ended()
                await asyncio.sleep(fault.lasts_s)
                await engine.start()
            case "stop":
                engine.stop()
                await asyncio.sleep(fault.lasts_s)
                engine.go_on()
            case _:
                await engine.misbehave(*fault.commands)
                await asyncio.sleep(fault.lasts_s)
                await engine.misbehave()

    async def _restart(self, gateway: GatewayProcess) -> None:
        gateway.program.signal(signal.SIGTERM)
        await asyncio.sleep(NOTICED_S)
        self._serving.remove(gateway)
        try:
            async with asyncio.timeout(DRAIN_S):
                status = await gateway.program.ended()
        except TimeoutError:
            self._problems.append(f"{gateway.program.name} did not end within {DRAIN_S:.0f} s of SIGTERM")
            await gateway.kill()
        else:
            self._problems += [f"{gateway.program.name} ended with status {status}"] if status else []
        await gateway.start()
        self._serving.append(gateway)

    # --- what came of it --------------------------------------------------------------------------------------------

    def _note(self, what: str) -> None:
        self._struck.append((asyncio.get_running_loop().time() - self._begun_s, what))

    def _told(self, outcome: Outcome) -> str:
        asked = outcome.ask
        kind = "stream" if asked.stream else "whole answer"
        kind += "" if asked.replayable else " (not replayable)"
        first = "no token" if outcome.first_s is None else f"first token at {outcome.first_s - self._begun_s:.2f} s"
        line = f"{outcome.request_id}: {kind} asked at {outcome.asked_s - self._begun_s:.2f} s, {first}, "
        return line + f"{outcome.fate} at {outcome.ended_s - self._begun_s:.2f} s: {outcome.status} {outcome.reason}"

    def _row(self) -> Row:
        seed = self._lab.options.seed
        if self._problems:
            timeline = "\n".join(f"{at_s:8.2f} s  {what}" for at_s, what in self._struck)
            problems = "\n".join(self._problems)
            failed = f"seed {seed}; its timeline:\n{timeline}\nwhat failed:\n{problems}"
        else:
            failed = ""
        tied = [each for each in self._outcomes if not each.ask.replayable]
        notes: dict[str, object] = {
            "trace": source(),
            "faults": len(self._faults),
            "behind Envoy": dict(Counter(str(each.fate) for each in self._behind_envoy)),
            "not replayable": f"{len(tied)}, of them broken {sum(each.fate is Fate.BROKEN for each in tied)}",
        }
        return tally(f"chaos, seed {seed}", self._outcomes, notes=notes, failed=failed)


def _is_a_fault_of_ours(outcome: Outcome) -> bool:
    match outcome.fate:
        case Fate.WRONG | Fate.STUCK:
            return True
        case Fate.BROKEN | Fate.GARBLED:
            return outcome.ask.replayable or not outcome.ask.stream or outcome.first_s is None
        case Fate.REFUSED:
            return outcome.status not in (429, 503)
    return False
