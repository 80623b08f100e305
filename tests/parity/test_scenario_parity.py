"""One scenario, two drivers: the simulator's heap and the gateway's asyncio driver give the same decision log.

The gateway's side is the real `Driver` with its tickets and tasks, on virtual time, in front of the same world of
engines; the order in which requests are opened, handed off and ended is asyncio's own.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_api.gateway_settings import GatewaySettings
from ballast_core.beliefs.block_hashes import trace_block_hashes
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding, Outcome, Request, RequestId
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.model.events import EndpointObserved
from ballast_core.policies.placement.registry import PLACEMENTS
from ballast_gateway.driver import Driver, Ticket
from ballast_gateway.settings import director_settings
from ballast_sim.engine import Finished
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.fleet.progress import PROGRESS_EVERY_TOKENS
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.requests.legs import engine_request, leg_id
from ballast_sim.simulation.world.pulls import Source
from ballast_sim.simulation.world.world import World
from tests.support.virtual_loop import run_virtually

pytestmark = pytest.mark.rotating(4, each=True)

SCENARIO = Path(__file__).with_name("scenario.yaml")


@dataclass(frozen=True, slots=True)
class Job:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int] | None = None
    block_size: int | None = None
    max_tokens: int | None = None
    traffic_class: str = ""


def jobs_of(scenario: dict[str, Any]) -> list[Job]:
    """The scenario's arrivals: Poisson, uniform lengths; prompts share prefixes where it names `prefixes`."""
    spec = scenario["arrivals"]
    rng, now_s, jobs = random.Random(spec["seed"]), 0.0, []
    for index in range(spec["count"]):
        now_s += rng.expovariate(spec["rate_rps"])
        job = Job(now_s, rng.randint(*spec["input_tokens"]), rng.randint(*spec["output_tokens"]))
        jobs.append(_with_prefix(job, index, rng, scenario["prefixes"]) if "prefixes" in scenario else job)
    return jobs


def _with_prefix(job: Job, index: int, rng: random.Random, spec: dict[str, Any]) -> Job:
    """The first blocks are those of one of `groups` conversations, the last ones its own."""
    size, group = spec["block_size"], rng.randrange(spec["groups"])
    blocks = math.ceil(job.input_tokens / size)
    shared = min(rng.randint(*spec["shared_blocks"]), blocks)
    ids = [1_000 * group + block for block in range(shared)]
    ids += [1_000_000 * (index + 1) + block for block in range(blocks - shared)]
    return replace(job, hash_ids=ids, block_size=size)


def line(effect: Effect, now_s: float) -> str | None:
    """A decision as the logs are compared: microseconds, what, for whom, where."""
    match effect:
        case Dispatch():
            prefill = effect.prefill.id if effect.prefill else "-"
            return f"{now_s:.6f} dispatch {effect.request_id} {prefill} {effect.decode.id}"
        case Handoff():
            return f"{now_s:.6f} handoff {effect.request_id} {effect.decode.id}"
        case _:
            return None


class LoopClock:
    """The event loop as a `world.Clock`."""

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def at(self, time_s: float, action: Callable[[], None], priority: int = 0) -> None:
        asyncio.get_running_loop().call_at(time_s, action)


@dataclass(slots=True)
class _Gateway:
    """The proxy face's behaviour as asyncio tasks, with engines in place of sockets."""

    scenario: dict[str, Any]
    settings: DirectorSettings
    log: list[str] = field(default_factory=list)
    driver: Driver = field(init=False)
    world: World = field(init=False)
    next_scrape: asyncio.TimerHandle = field(init=False)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    generated: dict[int, int] = field(default_factory=dict)
    ended: dict[str, asyncio.Event] = field(default_factory=dict)

    async def run(self) -> list[str]:
        """Serve the scenario; returns the decision log."""
        self.driver = Driver(Director(self.settings), listeners=(self._note,))
        machines = parse_shape(self.scenario["shape"])
        self.world = World(machines, LoopClock(), self)
        for machine in machines:
            self.driver.feed(EndpointObserved(machine.endpoint))
        self._scrape(self.scenario["scrape"]["interval_s"])
        async with asyncio.TaskGroup() as group:
            for index, job in enumerate(jobs_of(self.scenario)):
                group.create_task(self._serve(index, job))
        self.next_scrape.cancel()
        self.driver.close()
        return self.log

    async def _serve(self, index: int, job: Job) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(job.arrival_s - loop.time())
        hashes: tuple[int, ...] = ()
        if job.hash_ids and job.block_size:
            hashes = tuple(trace_block_hashes(job.hash_ids, job.input_tokens, job.block_size))
        request = Request(
            RequestId(str(index)),
            job.input_tokens,
            max_output_tokens=job.output_tokens,
            block_hashes=hashes,
            block_size=job.block_size or 0,
        )
        with self.driver.open(request) as ticket:
            self.tickets[index] = ticket
            dispatch = await ticket.dispatched()
            decode, source = dispatch.decode, None
            if dispatch.prefill is not None:
                await self._leg(index, job, dispatch.prefill.id, prefill=True)
                source = Source(dispatch.prefill.id, leg_id(index, prefill=True))
                decode = ticket.prefill_done().decode
            await self._leg(index, job, decode.id, prefill=False, source=source)
            ticket.end(Outcome.COMPLETED, job.output_tokens)

    async def _leg(self, index: int, job: Job, endpoint: Any, *, prefill: bool, source: Source | None = None) -> None:
        ended = self.ended[leg_id(index, prefill=prefill)] = asyncio.Event()
        request = engine_request(
            job,
            index,
            prefill=prefill,
            pull=source is not None,
            block_size=self.world.block_size(endpoint),
            now_s=asyncio.get_running_loop().time(),
        )
        self.world.submit(endpoint, request, source)
        await ended.wait()

    def token(self, request_id: str, at_s: float) -> None:
        if request_id[-1] == "p":
            return
        index = int(request_id[:-1])
        count = self.generated[index] = self.generated.get(index, 0) + 1
        if count == 1:
            self.tickets[index].first_token()
        elif count % PROGRESS_EVERY_TOKENS == 0:
            self.tickets[index].progress(count)

    def finished(self, event: Finished) -> None:
        self.ended[event.request_id].set()

    def _scrape(self, at_s: float) -> None:
        """At the simulator's times to the last bit: what beliefs do once a second may hang on it."""
        self.next_scrape = asyncio.get_running_loop().call_at(at_s, self._scraped, at_s)

    def _scraped(self, at_s: float) -> None:
        spec, loop = self.scenario["scrape"], asyncio.get_running_loop()
        loop.call_at(at_s + spec["delay_s"], self._observed, self.world.observe())
        self._scrape(at_s + spec["interval_s"])

    def _observed(self, seen: Sequence[Any]) -> None:
        for machine, observation in seen:
            self.driver.feed(EndpointObserved(machine.endpoint, observation))

    def _note(self, effect: Effect, now_s: float) -> None:
        text = line(effect, now_s)
        if text is not None:
            self.log.append(text)


def simulated(scenario: dict[str, Any], settings: DirectorSettings) -> list[str]:
    """The decision log of the simulator."""
    log: list[str] = []

    def note(effect: Effect, now_s: float) -> None:
        text = line(effect, now_s)
        if text is not None:
            log.append(text)

    spec = scenario["scrape"]
    around = FleetSettings(scrape_interval_s=spec["interval_s"], scrape_delay_s=spec["delay_s"])
    fleet = Fleet(parse_shape(scenario["shape"]), settings, around, on_effect=note)
    fleet.load(jobs_of(scenario))
    fleet.run()
    return log


def director_settings_of(**policy: Any) -> DirectorSettings:
    """As a gateway has them from its settings file."""
    file = {"model": {"servedNames": ["m"]}, "discovery": {"file": "endpoints.yaml"}, "policy": policy}
    return director_settings(GatewaySettings.parse(file))


@pytest.mark.parametrize("binding", list(Binding))
@pytest.mark.parametrize("policy", sorted(PLACEMENTS))
def test_gateway_and_simulator_decide_alike(policy: str, binding: Binding) -> None:
    """Every dispatch and hand-off: the same request, endpoints and microsecond."""
    scenario = yaml.safe_load(SCENARIO.read_text())
    settings = replace(director_settings_of(prefill={"type": policy}, decode={"type": policy}), binding=binding)
    expected = simulated(scenario, settings)
    assert len(expected) == 2 * scenario["arrivals"]["count"]
    assert run_virtually(_Gateway(scenario, settings).run()) == expected


@pytest.mark.parametrize("order", ["fcfs", "shortest-prompt", "uniboost"])
def test_they_let_requests_wait_and_go_alike(order: str) -> None:
    """With so few places that most wait in the gateway: who goes next, and when."""
    scenario = yaml.safe_load(SCENARIO.read_text())
    placements = {stage: {"type": "least-requests"} for stage in ("prefill", "decode")}
    admission = {"type": "bounded", "parameters": {"maxPrefillRequests": 1, "maxDecodeRequests": 2}}
    settings = director_settings_of(**placements, queue={"type": order}, admission=admission)
    expected = simulated(scenario, settings)
    unbounded = simulated(scenario, director_settings_of(**placements))
    assert expected != unbounded
    assert len(expected) == len(unbounded)
    assert run_virtually(_Gateway(scenario, settings).run()) == expected


@pytest.mark.parametrize("policy", ["least-uncached-tokens", "lmetric", "ballast"])
def test_they_know_the_same_prefixes(policy: str) -> None:
    """Where prompts share prefixes: both indexes of own routing agree, and they change what is decided."""
    scenario = yaml.safe_load(SCENARIO.read_text())
    prefixes = {"block_size": 64, "groups": 4, "shared_blocks": [0, 40]}
    settings = director_settings_of(prefill={"type": policy}, decode={"type": policy})
    expected = simulated({**scenario, "prefixes": prefixes}, settings)
    assert expected != simulated({**scenario, "prefixes": {**prefixes, "shared_blocks": [0, 0]}}, settings)
    assert run_virtually(_Gateway({**scenario, "prefixes": prefixes}, settings).run()) == expected
