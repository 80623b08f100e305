"""When candidates are worth trying, what later rounds make of it, and what a decision says where nothing was tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ballast_core.policies.scaling.demand import misses
from ballast_core.policies.scaling.protocol import Decision, Proposal, Rehearsal, Scaling


def worth_rehearsing(policy: Scaling, proposal: Proposal) -> bool:
    """Whether a rehearsal may change the decision for the better.

    It costs minutes of simulated traffic, so it is left out in rounds that would change nothing while no class misses
    its objective.
    """
    if not policy.rehearses or len(proposal.candidates) < 2:
        return False
    return policy.decide(proposal).changes or misses(proposal.inputs)


def unrehearsed(decision: Decision, problem: str) -> Decision:
    """The decision of the equilibrium, which says why nothing was tried."""
    return replace(decision, message=f"{decision.message}; not rehearsed: {problem}")


def carried_over(tried: Proposal, rehearsals: Sequence[Rehearsal], proposal: Proposal) -> tuple[Rehearsal, ...]:
    """What rehearsals of an earlier proposal say of a later one: those of the layouts that are candidates of both.

    They take seconds, and the traffic goes on meanwhile. None where the objectives, the present layout, the pools or
    the equilibrium are others by now: then the earlier question is not the one that is asked.
    """
    before, now = tried.inputs, proposal.inputs
    if before.objectives != now.objectives:
        return ()
    same = before.wanted == now.wanted and [each.name for each in before.pools] == [each.name for each in now.pools]
    if not (same and tried.candidates and proposal.candidates):
        return ()
    if tried.candidates[0].layout != proposal.candidates[0].layout:
        return ()
    by_layout = {tried.candidates[each.candidate].layout: each for each in rehearsals}
    return tuple(
        replace(by_layout[candidate.layout], candidate=k)
        for k, candidate in enumerate(proposal.candidates)
        if candidate.layout in by_layout
    )
