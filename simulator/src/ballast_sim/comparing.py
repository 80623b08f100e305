"""What a comparison of policies shows, in one sentence; small differences are called none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

NO_DIFFERENCE = "No difference"
"""How the sentence of a tie begins."""
SAME_SHARE = 0.005
"""Shares of requests that differ by less than half a point are alike."""
SAME_RATIO = 0.05
"""Times that differ by less than this share of the smaller one are alike."""


def attained(shares: Mapping[str, Sequence[float]]) -> str:
    """The share of requests within the SLO by policy, one value for each seed or run; ratios in [0, 1].

    The best policy stands first. Policies are alike where their means differ by less than `SAME_SHARE`, or by no more
    than the seeds of one of them do.
    """
    means = {name: fmean(values) for name, values in shares.items()}
    order = sorted(means, key=lambda name: -means[name])
    best, others = order[0], order[1:]
    if not others:
        return f"{best}: {means[best]:.1%} of requests within the SLO."
    alike = [name for name in others if _alike(shares[best], shares[name])]
    if alike == others:
        low, high = f"{means[order[-1]]:.1%}", f"{means[best]:.1%}"
        kept = low if low == high else f"{low} to {high}"
        return f"{NO_DIFFERENCE}: {kept} of requests within the SLO under {_listed(order)}."
    behind = [name for name in others if name not in alike]
    return (
        f"{_listed([best, *alike])}: {_listed([f'{means[name]:.1%}' for name in (best, *alike)])} of requests within "
        f"the SLO instead of {_listed([f'{means[name]:.1%} ({name})' for name in behind])}."
    )


def waited(times_s: Mapping[str, float], what: str) -> str:
    """The same for times in seconds, such as P99 TTFT; lower is better."""
    order = sorted(times_s, key=lambda name: times_s[name])
    best, worst = times_s[order[0]], times_s[order[-1]]
    if len(order) == 1:
        return f"{what}: {_seconds(best)}."
    if worst <= best * (1 + SAME_RATIO):
        return f"{what} does not differ: {_seconds(best)} to {_seconds(worst)}."
    return f"{what}: {_listed([f'{_seconds(times_s[name])} ({name})' for name in order])}."


def _alike(one: Sequence[float], other: Sequence[float]) -> bool:
    spread = max(max(one) - min(one), max(other) - min(other))
    return abs(fmean(one) - fmean(other)) < max(SAME_SHARE, spread)


def _seconds(value_s: float) -> str:
    if value_s >= 10:
        return f"{value_s:.0f} s"
    return f"{value_s:.2g} s" if value_s >= 1 else f"{value_s * 1e3:.3g} ms"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
