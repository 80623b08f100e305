"""Which candidates go on from a stretch of the traffic to the whole of it.

On the busiest stretch differences show most, so what is clearly worse there is dropped, and so is a policy that does no
better there than the default on the same layout. The default of a layout whose policies go on goes on, too: the final
rule needs both. So do policies that need warm caches, about which a stretch that starts on cold ones says little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ballast_sim.recommend.candidates import SAME_ATTAINMENT, Candidate, ranked
from ballast_sim.simulation.inputs.objective import Objective

WORSE_ATTAINMENT = 0.05
"""Clearly worse than the best: by so much of the attainment, and by `WORSE_ERRORS` standard errors of it."""
WORSE_ERRORS = 2.0
WORSE_RATIO = 1.3
"""Clearly worse at the same attainment: by this factor on the worst P99 against the SLO."""
BETTER_RATIO = 0.99
"""A policy does better than the default with any more attainment, or with the worst P99 against the SLO below this."""
MOST_KEPT = 4


def survivors(
    candidates: Sequence[Candidate], requests: int, objective: Objective
) -> tuple[list[Candidate], dict[str, str]]:
    """Those that go on after so many requests, and why others do not, by `label`.

    `MOST_KEPT` of them go on, with the default and the policies that need warm caches on the same layouts.
    """
    order = ranked(candidates, objective)
    best = order[0]
    defaults = {each.layout.shape: each for each in candidates if each.variant.is_default}
    kept: list[Candidate] = []
    reasons: dict[str, str] = {}
    for each in order:
        default = defaults.get(each.layout.shape, each)
        if each is not best and clearly_worse(each, best, requests, objective):
            reasons[each.label] = "clearly worse than the best"
        elif each is not best and each is not default and not does_better(each, default, objective):
            reasons[each.label] = "no better than the default policy"
        elif len(kept) == MOST_KEPT:
            reasons[each.label] = f"not among the best {MOST_KEPT}"
        else:
            kept.append(each)
    lasting = {each.layout.shape for each in kept}
    for each in candidates:
        if each.layout.shape in lasting and (each.variant.is_default or each.variant.needs_warm_caches):
            reasons.pop(each.label, None)
    return [each for each in order if each.label not in reasons], reasons


def clearly_worse(candidate: Candidate, best: Candidate, requests: int, objective: Objective) -> bool:
    """Whether a longer run would hardly make it the best, after a run of so many requests."""
    behind = best.attainment - candidate.attainment
    error = math.sqrt(best.attainment * (1 - best.attainment) / requests)
    if behind > max(WORSE_ATTAINMENT, WORSE_ERRORS * error):
        return True
    return 0 <= behind <= SAME_ATTAINMENT and candidate.strain(objective) > WORSE_RATIO * best.strain(objective)


def does_better(candidate: Candidate, default: Candidate, objective: Objective) -> bool:
    """Whether a policy shows anything for itself."""
    if candidate.attainment > default.attainment:
        return True
    return candidate.strain(objective) < BETTER_RATIO * default.strain(objective)
