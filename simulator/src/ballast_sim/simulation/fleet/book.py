"""The requests of one run and their legs: what arrives, what became of it, and the ids under which engines know it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ballast_core.model import RequestId
from ballast_sim.simulation.requests.legs import EngineLeg
from ballast_sim.simulation.requests.records import Arrival, Record


@dataclass(slots=True)
class Book:
    """Lists by the request's index in the run; the gateways' request id is that index, written out."""

    arrivals: list[Arrival] = field(default_factory=list)
    ids: list[RequestId] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    legs: dict[str, EngineLeg] = field(default_factory=dict)
    """By the id under which an engine knows, or knew, a leg."""
    decoding: dict[int, EngineLeg] = field(default_factory=dict)
    """The leg that decodes each request now, or will; of those that may move."""

    def add(self, arrival: Arrival) -> int:
        """Enter a request; its index."""
        index = len(self.arrivals)
        self.arrivals.append(arrival)
        self.ids.append(RequestId(str(index)))
        self.records.append(Record(index, arrival.arrival_s, arrival.input_tokens, arrival.output_tokens))
        return index

    def record(self, request_id: RequestId) -> Record:
        """The record of a request that a Director names."""
        return self.records[int(request_id)]

    def id_of(self, record: Record) -> RequestId:
        """The id by which Directors know it."""
        return self.ids[record.index]
