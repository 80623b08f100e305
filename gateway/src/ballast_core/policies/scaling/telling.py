"""Decisions with their reason, for programs and for people."""

from __future__ import annotations

from ballast_core.policies.scaling.fitting import within
from ballast_core.policies.scaling.protocol import Decision, Inputs, Layout, Memory, Proposal, Rehearsal
from ballast_core.policies.scaling.steadying import Steadied


def refuse(proposal: Proposal, memory: Memory | None = None) -> Decision:
    """Nothing changes, whatever the traffic. `memory`: what to remember; None: what was remembered."""
    refusal, inputs = proposal.refusal, proposal.inputs
    assert refusal is not None
    return Decision(
        proposal=proposal,
        target=inputs.wanted,
        reason=refusal.reason,
        message=f"{refusal.message}; nothing is scaled",
        memory=inputs.memory if memory is None else memory,
    )


def conclude(
    proposal: Proposal,
    steadied: Steadied,
    chosen: int,
    why: str,
    *,
    rehearsals: tuple[Rehearsal, ...] = (),
    predicted: float | None = None,
) -> Decision:
    """The decision for a chosen candidate."""
    inputs, candidate = proposal.inputs, proposal.candidates[chosen]
    wanted, target = inputs.wanted, steadied.target
    parts = [f"{in_words(inputs, candidate.layout)} is right ({candidate.origin}; {why})"]
    if proposal.remark:
        parts.append(proposal.remark)
    if proposal.demand is not None:
        demand = proposal.demand
        parts.append(
            f"{demand.rate_rps:.3g} requests/s, {demand.forecast_rps:.3g} in {inputs.startup_s:.0f} s, "
            f"{demand.lengths.input_tokens:.0f} uncached tokens in and {demand.lengths.output_tokens:.0f} out"
        )
    if predicted is not None:
        parts.append(f"{predicted:.1%} expected within the objective")
    if target == wanted:
        reason = steadied.held_by or ("BudgetReached" if proposal.remark else "Steady")
        if candidate.layout == wanted:
            reason = "BudgetReached" if proposal.remark else "Steady"
            parts.append(f"{in_words(inputs, wanted)} stays")
        else:
            parts.append(f"{in_words(inputs, wanted)} stays for now: {_HELD[reason]}")
    else:
        reason = _change(wanted, target)
        parts.append(f"from {in_words(inputs, wanted)} to {in_words(inputs, target)}")
        if steadied.held_by and target != candidate.layout:
            parts.append(f"no further yet: {_HELD[steadied.held_by]}")
    if not within(inputs.pools, target, inputs.clamps):
        parts.append("clamps are not met until GPUs are free")
    return Decision(
        proposal=proposal,
        target=target,
        reason=reason,
        message="; ".join(parts),
        chosen=chosen,
        rehearsals=rehearsals,
        predicted_attainment=predicted,
        memory=steadied.memory,
    )


_HELD = {
    "Stabilising": "a stabilisation window is not over, a class misses its objective, or the way there would break a "
    "clamp",
    "ChangeUnderWay": "instances of the last change start or drain",
    "BudgetReached": "the budget is used up",
    "Steady": "it is right",
}


def _change(wanted: Layout, target: Layout) -> str:
    steps = [then.replicas - now.replicas for now, then in zip(wanted, target, strict=True)]
    if max(steps) > 0 and min(steps) < 0:
        return "Rebalanced"
    if max(steps) > 0:
        return "ScaledUp"
    return "ScaledDown" if min(steps) < 0 else "RolesFlipped"


def in_words(inputs: Inputs, layout: Layout) -> str:
    """Such as `2P6D` of one pool, or `fast 2P, slow 6D` of several."""
    texts = []
    for pool, counts in zip(inputs.pools, layout, strict=True):
        text = (f"{counts.prefill}P" if counts.prefill else "") + (f"{counts.decode}D" if counts.decode else "") or "0"
        texts.append(text if len(inputs.pools) == 1 else f"{pool.name} {text}")
    return ", ".join(texts)
