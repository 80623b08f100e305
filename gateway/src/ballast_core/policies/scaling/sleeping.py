"""Scale to zero and back: both stages together, when no request has been there for long, and with the first one."""

from __future__ import annotations

from ballast_core.policies.scaling.fitting import least_layout, price, refusal_of
from ballast_core.policies.scaling.protocol import (
    Candidate,
    Counts,
    Decision,
    Inputs,
    Layout,
    Memory,
    Proposal,
    Refusal,
)
from ballast_core.policies.scaling.steadying import within_gpus
from ballast_core.policies.scaling.telling import in_words

ASLEEP, WOKEN = "ScaledToZero", "Woken"


def may_sleep(inputs: Inputs) -> bool:
    """Whether every pool may have no instance, and a time is set for it."""
    return inputs.zero_after_s is not None and not any(pool.least for pool in inputs.pools)


def sleeping(inputs: Inputs) -> Proposal | None:
    """The proposal of a fleet that sleeps, falls asleep or wakes; None: the traffic decides."""
    idle_s, after_s = inputs.traffic.idle_s, inputs.zero_after_s
    if not inputs.pools or after_s is None or not may_sleep(inputs):
        return None
    if any(counts.replicas for counts in inputs.wanted):
        nothing: Layout = tuple(Counts() for _ in inputs.pools)
        return _one(inputs, nothing, ASLEEP) if idle_s >= after_s else None
    if idle_s and not (idle_s < after_s and any(inputs.traffic.arrivals)):
        return Proposal(inputs=inputs, refusal=Refusal(ASLEEP, "no request has come since both stages were stopped"))
    refusal = refusal_of(inputs)
    least = least_layout(inputs)
    if refusal is not None or least is None:
        return Proposal(inputs=inputs, refusal=refusal)
    if not within_gpus(inputs, least)[1]:
        message = f"a request came: {in_words(inputs, least)} starts once instances that drain have left their GPUs"
        return Proposal(inputs=inputs, refusal=Refusal("ChangeUnderWay", message))
    return _one(inputs, least, WOKEN)


def settled(proposal: Proposal) -> Decision | None:
    """The decision on a proposal of `sleeping`; None on any other."""
    first = proposal.candidates[0] if proposal.candidates else None
    if first is None or first.origin not in {ASLEEP, WOKEN}:
        return None
    inputs = proposal.inputs
    if first.origin == ASLEEP:
        message = f"no request for {inputs.traffic.idle_s:.0f} s: both stages stop, and start again with the next one"
    else:
        message = (
            f"a request came: {in_words(inputs, first.layout)} starts, in about {inputs.startup_s:.0f} s; "
            "the traffic decides on more"
        )
    return Decision(
        proposal=proposal, target=first.layout, reason=first.origin, message=message, chosen=0, memory=Memory()
    )


def _one(inputs: Inputs, layout: Layout, origin: str) -> Proposal:
    return Proposal(inputs=inputs, candidates=(Candidate(layout, origin, price(inputs.pools, layout), 1.0),))
