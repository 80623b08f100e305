"""A planned request in flight, as its `Run` sees it: the plan answers at once, and pickers hear what happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from ballast_core.model import EndpointId, Fault, Outcome, Request, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch, Handoff, Reject
from ballast_gateway.agent.choosing import Choosing
from ballast_gateway.agent.places import Places
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.messages import (
    Began,
    Ended,
    LegFailed,
    Moved,
    MoveFailed,
    Opened,
    Prefilled,
    Redirected,
    Row,
    counted,
    ranked,
)
from ballast_gateway.podapi.plan import Place, Plan
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.fields import is_divisible
from ballast_gateway.tickets import Canceller, Leaver, Mover, Rejected

_OUTCOMES: Final[Mapping[Outcome, Literal["completed", "failed", "cancelled"]]] = {
    Outcome.COMPLETED: "completed",
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "cancelled",
}


class PlannedTicket:
    """One request with a plan (`tickets.Ticket`)."""

    def __init__(
        self,
        plan: Plan,
        request: Request,
        places: Places,
        feed: Feed,
        status: Callable[[], int] = lambda: 0,
    ) -> None:
        """Tell the pickers of it. The plan names the agent's own place. `status`: what its client got."""
        self.request = request
        self.mover: Mover | None = None
        self.leaver: Leaver | None = None
        self.canceller: Canceller | None = None
        self.key = plan.key
        self.by = plan.by
        self.failures = 0
        self.choosing = Choosing(plan, places, divisible=request.divisible)
        self._places = places
        self._feed = feed
        self._status = status
        self._open = True
        self._next: Dispatch | Reject | None = self.choosing.dispatch()
        prefill = self.choosing.prefill
        feed.say(
            Opened(
                request=Row(
                    id=plan.id,
                    by=plan.by,
                    phase="prefilling",
                    decode=self.choosing.decode.id,
                    prefill="" if prefill is None else prefill.id,
                    prompt_tokens=counted(request.prompt_tokens),
                    max_output_tokens=request.max_output_tokens,
                    model=request.model,
                    traffic_class=request.traffic_class,
                    tenant=request.tenant,
                    priority=ranked(request.priority),
                    movable=request.movable,
                )
            )
        )

    def now_s(self) -> float:
        """The time on the clock of its record: uvloop's own moves in whole milliseconds."""
        return time.monotonic()

    def poll(self) -> Dispatch | None:
        """The (next) dispatch. Raises `Rejected`."""
        effect, self._next = self._next, None
        if isinstance(effect, Reject):
            raise Rejected(effect)
        return effect

    def when_arrived(self, call: Callable[[], object]) -> None:
        """Never needed: a plan answers at once."""
        raise RuntimeError("a plan has its next place as soon as a leg has failed")

    def prefill_done(self, *, computed: bool = True) -> Handoff:
        """Go on as planned."""
        self._feed.say(Prefilled(key=self.key))
        return self._handoff()

    def segment_done(self, generated_tokens: int, *, computed: bool = True) -> Handoff:
        """Go on as planned."""
        return self.prefill_done(computed=computed)

    def _handoff(self) -> Handoff:
        return Handoff(self.request.id, self._places.endpoint(self.choosing.decode))

    def first_token(self) -> None:
        """Tell of it."""
        self.choosing.begun = True
        self._feed.say(Began(key=self.key))

    def progress(self, generated_tokens: int) -> None:
        """Tell of it soon."""
        self._feed.progressed(self.key, generated_tokens)

    def failed(self, stage: Stage, endpoint_id: EndpointId, fault: Fault, status: int = 0) -> None:
        """Take the next place."""
        self.failures += 1
        say, key = self._feed.say, self.key
        what: Literal["prefill", "decode"] = "prefill" if stage is Stage.PREFILL else "decode"
        say(LegFailed(key=key, stage=what, endpoint=endpoint_id, fault=str(fault), status=status))
        self._next = found = self.choosing.failed(stage, endpoint_id, fault, status)
        if isinstance(found, Dispatch):
            say(Redirected(key=key, decode=found.decode.id, prefill="" if found.prefill is None else found.prefill.id))

    def migrated(self, target: EndpointId) -> None:
        """It decodes there now."""
        self.choosing.moved()
        self._feed.say(Moved(key=self.key, target=target))

    def migration_failed(self, target: EndpointId) -> None:
        """It stays where it is."""
        self._feed.say(MoveFailed(key=self.key, target=target))

    def end(self, outcome: Outcome, output_tokens: int = 0, fault: Fault | None = None) -> None:
        """Tell of it; further calls change nothing."""
        if not self._open:
            return
        self._open = False
        how = _OUTCOMES[outcome]
        said, status = str(fault or ""), self._status()
        tokens = counted(output_tokens)
        self._feed.say(Ended(key=self.key, outcome=how, output_tokens=tokens, fault=said, status=status))


def request_of(plan: Plan, generation: Generation, *, movable: bool) -> Request:
    """What is known about a planned request, by its body where the plan does not say."""
    return Request(
        id=RequestId(plan.id),
        prompt_tokens=plan.prompt_tokens or generation.prompt_tokens,
        max_output_tokens=plan.max_output_tokens or generation.max_output_tokens,
        model=plan.model,
        priority=plan.priority or 0,
        traffic_class=plan.traffic_class,
        tenant=plan.tenant,
        movable=movable,
        divisible=is_divisible(generation),
    )


def plan_of_llmd(request_id: str, own: Place, prefiller: str, name: str) -> Plan:
    """What llm-d's header asks for: prefill there, decode here; where that fails, here alone."""
    return Plan(id=request_id, by=name, decode=own, prefill=Place(prefiller, prefiller, Role.PREFILL))
