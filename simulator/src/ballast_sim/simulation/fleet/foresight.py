"""What gateways know of a request when it arrives: its prompt, its limit, and a predicted length; never its output."""

from __future__ import annotations

from ballast_core.beliefs.block_hashes import trace_block_hashes
from ballast_core.model import Request, RequestId
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.requests.records import Arrival, Record


class Foresight:
    """Limits and predictions, according to the settings of a run."""

    def __init__(self, settings: FleetSettings) -> None:
        self._hints = settings.length_hints
        self._seed = settings.seed
        self._known_limits = settings.known_limits
        self._max_tokens = settings.max_tokens
        self._recorded_limits = settings.recorded_limits

    def request(self, request_id: RequestId, arrival: Arrival, record: Record) -> Request:
        """A request as a gateway sees it."""
        hashes: tuple[int, ...] = ()
        if arrival.hash_ids and arrival.block_size:
            hashes = tuple(trace_block_hashes(arrival.hash_ids, arrival.input_tokens, arrival.block_size))
        return Request(
            request_id,
            record.input_tokens,
            max_output_tokens=self.limit_tokens(record),
            block_hashes=hashes,
            block_size=arrival.block_size or 0 if hashes else 0,
            traffic_class=arrival.traffic_class,
            expected_output_tokens=self.output_tokens(record),
        )

    def limit_tokens(self, record: Record) -> int | None:
        """The request's max_tokens, or None where it has none."""
        if self._known_limits:
            return record.output_tokens
        if self._max_tokens is not None:
            return max(self._max_tokens, record.output_tokens)
        return record.max_tokens if self._recorded_limits else None

    def output_tokens(self, record: Record, generated_tokens: int = 0) -> float | None:
        """The predicted length of the whole output, at arrival or after so many tokens; None without a predictor."""
        return self._hints.output_tokens(self._seed, record.index, record.output_tokens, generated_tokens)

    def tokens_to_come(self, record: Record) -> float | None:
        """Output tokens left by the prediction at arrival, at least one; None without a predictor."""
        foreseen = self.output_tokens(record)
        return None if foreseen is None else max(1.0, foreseen - record.generated_tokens)

    @property
    def changes(self) -> bool:
        """Whether a later prediction differs from the one at arrival."""
        return self._hints.changes
