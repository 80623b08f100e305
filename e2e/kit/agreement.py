"""Two controllers' decisions on the same traffic, side by side: what was asked for, and how long they agreed."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Move(NamedTuple):
    """A change of what is asked for. Seconds count from the first request."""

    at_s: float
    layout: str
    reason: str


def moves(records: Sequence[Mapping[str, Any]], first_s: float) -> list[Move]:
    """Of stored decisions: the layout at the beginning, and each change."""
    found: list[Move] = []
    for record in records:
        if not found:
            found.append(Move(0.0, words(record["from"]), "start"))
        if record["changes"]:
            found.append(Move(record["at_s"] - first_s, words(record["to"]), record["reason"]))
    return found


def words(layout: Mapping[str, Mapping[str, int]]) -> str:
    """Such as `2P2D`: the instances of all pools together, by stage."""
    return "".join(
        f"{sum(each[stage] for each in layout.values())}{stage[0].upper()}" for stage in ("prefill", "decode")
    )


def asked_at(told: Sequence[Move], at_s: float) -> str:
    """The layout that was asked for at a time."""
    return [each.layout for each in told if each.at_s <= at_s or each is told[0]][-1]


def agreement(one: Sequence[Move], other: Sequence[Move], until_s: float, *, within_s: float = 0.0) -> float:
    """Share of the time in which both ask for the same; with `within_s` a move may come so much sooner or later."""
    times = [k * 1.0 for k in range(int(until_s))]
    edges = sorted({0.0, *(each.at_s for each in (*one, *other))})

    def near(told: Sequence[Move], at_s: float) -> set[str]:
        moved = [each for each in edges if abs(each - at_s) <= within_s]
        return {asked_at(told, each) for each in (at_s, at_s - within_s, at_s + within_s, *moved)}

    same = sum(asked_at(one, at_s) in near(other, at_s) for at_s in times)
    return same / max(1, len(times))


def table(cluster: Sequence[Move], simulator: Sequence[Move]) -> str:
    """Both sequences in order of time."""
    rows = [(each.at_s, "cluster", each) for each in cluster] + [(each.at_s, "simulator", each) for each in simulator]
    lines = ["| s | cluster asks for | simulator asks for | reason |", "| --- | --- | --- | --- |"]
    for at_s, who, each in sorted(rows, key=lambda row: row[:2]):
        both = (each.layout, "") if who == "cluster" else ("", each.layout)
        lines.append(f"| {at_s:.0f} | {both[0]} | {both[1]} | {each.reason} |")
    return "\n".join(lines)
