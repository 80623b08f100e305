"""What this gateway tells of endpoints that are to be emptied: their loads, and what became of their requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ballast_api.load_report import EndpointLoad, HoldReport, LoadReport
from ballast_api.metric_making import counters
from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, Stage
from ballast_core.state.departures import Departures
from ballast_gateway.observe.fleet import Fleet, Member


def load_report(director: Director, fleet: Fleet, *, now_s: float, unix_s: float) -> bytes:
    """The endpoints that discovery has and those that still hold requests. `unix_s`: the clock's zero. In JSON."""
    own: Counter[int] = Counter()
    tied: Counter[int] = Counter()
    for entry in director.ledger:
        held = {slot for slot in (entry.prefill_slot, entry.decode_slot) if slot is not None}
        if not entry.adopted:
            own.update(held)
        if entry.decodes and entry.decode_slot is not None and not entry.request.movable:
            tied[entry.decode_slot] += 1
    ledger, departures = director.ledger, director.departures
    loads = []
    for name in sorted({*fleet.members, *director.inventory.known()}):
        slot = director.inventory.slot_of(EndpointId(name))
        booked = 0 if slot is None else sum(int(ledger.requests[stage][slot]) for stage in Stage)
        running, age_s = _reported(fleet.members.get(EndpointId(name)), now_s)
        loads.append(
            EndpointLoad(
                name=name,
                draining=slot is None or slot in director.inventory.leaving,
                requests=booked,
                own=0 if slot is None else own[slot],
                tied=0 if slot is None else tied[slot],
                tokens=0 if slot is None else int(ledger.tokens[Stage.DECODE][slot]),
                engine=running,
                engine_age_s=age_s,
            )
        )
    told = LoadReport(
        unix_s=unix_s + now_s,
        endpoints=tuple(loads),
        moved_out=departures.moved_out,
        finished=departures.finished,
        lost=departures.lost,
    )
    return msgspec.json.encode(told)


def hold_report(director: Director, fleet: Fleet, host: str) -> bytes:
    """What is left at the pod of this address. One that is not known here has nothing, and gets nothing. In JSON."""
    inventory, ledger = director.inventory, director.ledger
    slots = [slot for slot in inventory.known_slots().tolist() if _host(inventory.endpoint(slot).address) == host]
    coming = any(
        _host(member.endpoint.address) == host and not member.liveness.draining for member in fleet.members.values()
    )
    told = HoldReport(
        draining=not coming and all(slot in inventory.leaving for slot in slots),
        requests=sum(int(ledger.requests[stage][slot]) for stage in Stage for slot in slots),
    )
    return msgspec.json.encode(told)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _reported(member: Member | None, now_s: float) -> tuple[int, float]:
    seen = None if member is None else member.observation
    return (0, -1.0) if seen is None else (seen.running + seen.waiting, round(now_s - seen.observed_at_s, 3))


class DrainMetrics(Collector):
    """Registers itself."""

    def __init__(self, departures: Departures, registry: CollectorRegistry) -> None:
        self._departures = departures
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        departures = self._departures
        found = counters("ballast_gateway_drained_requests_total")
        found.add_metric(("moved",), departures.moved_out)
        found.add_metric(("finished",), departures.finished)
        found.add_metric(("lost",), departures.lost)
        yield found
