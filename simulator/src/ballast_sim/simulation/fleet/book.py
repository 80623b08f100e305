"""The requests of one run and their legs: arrivals, records, and the ids under which engines know them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_core.model import RequestId
from ballast_sim.simulation.requests.legs import EngineLeg, LegKind
from ballast_sim.simulation.requests.records import Arrival, Record


@dataclass(slots=True)
class Book:
    """Lists by the request's index in the run. Gateways use that index, as text, for the request id."""

    arrivals: list[Arrival] = field(default_factory=list)
    ids: list[RequestId] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    legs: dict[str, EngineLeg] = field(default_factory=dict)
    """By the id of a leg in its engine; legs that have ended stay."""
    last_decode: dict[str, EngineLeg] = field(default_factory=dict)
    """By id, the leg of a request that was sent last to decode it."""
    decoding: dict[int, EngineLeg] = field(default_factory=dict)
    """By index, the leg that decodes a request now or will; only of requests that may migrate."""

    def add(self, arrival: Arrival) -> int:
        """Enter a request. Returns its index."""
        index = len(self.arrivals)
        self.arrivals.append(arrival)
        self.ids.append(RequestId(str(index)))
        lengths = (arrival.input_tokens, arrival.output_tokens, arrival.max_tokens)
        self.records.append(Record(index, arrival.arrival_s, *lengths))
        return index

    def add_leg(self, leg: EngineLeg) -> None:
        """Enter a leg that is sent to an engine."""
        self.legs[leg.id] = leg
        if leg.kind is LegKind.DECODE:
            self.last_decode[self.ids[leg.record.index]] = leg

    def record(self, request_id: RequestId) -> Record:
        """The record of a Director's request id."""
        return self.records[int(request_id)]

    def id_of(self, record: Record) -> RequestId:
        """The Director's request id of a record."""
        return self.ids[record.index]
