"""When candidates are worth trying, and what a decision says where they should have been tried and were not."""

from __future__ import annotations

from dataclasses import replace

from ballast_core.policies.scaling.demand import misses
from ballast_core.policies.scaling.protocol import Decision, Proposal, Scaling


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
