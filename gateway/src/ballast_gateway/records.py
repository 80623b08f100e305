"""The record of one client request: the source of its log line and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from json.encoder import encode_basestring_ascii as _text  # what `json` itself writes texts with
from typing import TYPE_CHECKING, Final

from ballast_core.model import Fault, Request

if TYPE_CHECKING:
    from ballast_core.attainment import Objective  # brings numpy, which an agent goes without
    from ballast_gateway.spans import Trace

HOLDER_LOST: Final = "holder-lost"
"""Reason of a request whose holder is gone, and has not said how it ended."""


class MoveOutcome(StrEnum):
    """How the move of a running decode ended."""

    MOVED = "moved"
    FAILED = "failed"
    """The decode stayed on its endpoint, or was rescued if that failed meanwhile."""
    ENDED = "ended"
    """The request ended first."""


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """One move."""

    outcome: MoveOutcome
    pause_s: float | None = None
    """From the cut to the target's first token, if it moved."""


@dataclass(slots=True)
class RequestRecord:
    """Filled in as a request goes on. Times are seconds on the driver's clock."""

    id: str
    arrived_s: float
    path: str = ""
    model: str = ""
    """A served name, or empty: other names that clients write do not enter metrics."""
    tenant: str = ""
    """Whose key it has, if that is a tenant of the keys file."""
    stream: bool = False
    prompt_tokens: int = 0
    prefill: str = ""
    """The prefill endpoint; empty if the decode endpoint computed the prompt itself."""
    cut_tokens: int = 0
    """Prompt tokens whose KV the decode endpoint was to pull from there; 0 unless the prompt was cut."""
    decode: str = ""
    dispatches: int = 0
    dispatched_s: float | None = None
    """Of the last dispatch before the first token."""
    prefilled_s: float | None = None
    first_token_s: float | None = None
    ended_s: float = 0.0
    output_tokens: int = 0
    status: int = 0
    """The status that the client got; 0 if it left before."""
    outcome: str = "completed"
    """completed, failed, cancelled, rejected (no endpoint), invalid (the client's fault), answered (by the gateway
    itself, with no generation), or routed: sent to its endpoint by a proxy that does not show how it ended; its times
    are those of the pick."""
    reason: str = ""
    """The error's code if it did not complete."""
    detail: str = ""
    moves: tuple[MoveRecord, ...] = ()
    """Each order to move it, with its outcome."""
    faults: tuple[Fault, ...] = ()
    """Why its legs failed, in turn."""
    rescues: int = 0
    """How often its engine failed after the first token and the stream continued."""
    asked: Request | None = None
    """What the Director was asked; None if it was not."""
    objective: Objective | None = None
    """Of its class; None if it belongs to none."""
    met: bool | None = None
    """Whether it met its objective; None until it has ended, and where that is not known or does not count."""
    tokens_seen: bool = True
    """Whether somebody counts output tokens."""
    measured_prompt_tokens: int = 0
    """Tokens of the prompt as an engine counted them; 0 where none has said."""
    trace: Trace | None = None
    """What a trace says of it; None where there are no traces."""

    @property
    def retries(self) -> int:
        """Dispatches after the first."""
        return max(0, self.dispatches - 1)

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token; None for a whole answer, whose first token is not seen."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def e2e_s(self) -> float:
        """Arrival to end."""
        return self.ended_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between two tokens after the first; None below two tokens."""
        if self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) / (self.output_tokens - 1)

    def as_json(self, time: str) -> str:
        """The canonical log line, without the fields that do not apply. `time`: RFC 3339, of its end."""
        line = (
            f'{{"time":"{time}","event":"request","request_id":{_text(self.id)},"path":{_text(self.path)},'
            f'"model":{_text(self.model)},"stream":{"true" if self.stream else "false"},"status":{self.status:d},'
            f'"outcome":{_text(self.outcome)},"prompt_tokens":{self.prompt_tokens},'
            f'"output_tokens":{self.output_tokens},"e2e_s":{round(self.e2e_s, 6)}'
        )
        if self.reason:
            line += f',"reason":{_text(self.reason)}'
        if self.detail:
            line += f',"detail":{_text(self.detail)}'
        if self.prefill:
            line += f',"prefill":{_text(self.prefill)}'
        if self.cut_tokens:
            line += f',"cut_tokens":{self.cut_tokens}'
        if self.decode:
            line += f',"decode":{_text(self.decode)}'
        if self.dispatches > 1:
            line += f',"retries":{self.retries}'
        if self.moves and (moved := sum(move.outcome is MoveOutcome.MOVED for move in self.moves)):
            line += f',"migrations":{moved}'
        if self.rescues:
            line += f',"rescues":{self.rescues}'
        if self.prefilled_s is not None and (prefill_s := round(self.prefilled_s - self.arrived_s, 6)):
            line += f',"prefill_s":{prefill_s}'
        if self.first_token_s is not None:
            if ttft_s := round(self.first_token_s - self.arrived_s, 6):
                line += f',"ttft_s":{ttft_s}'
            if (tpot_s := self.tpot_s) and (rounded_s := round(tpot_s, 6)):
                line += f',"tpot_s":{rounded_s}'
        return line + self._of_client() + "}"

    def _of_client(self) -> str:
        """Its tenant and its class."""
        tenant = f',"tenant":{_text(self.tenant)}' if self.tenant else ""
        if self.objective is None:
            return tenant
        met = "" if self.met is None else f',"met":{"true" if self.met else "false"}'
        return f'{tenant},"objective":{_text(self.objective.name)}{met}'
