"""Results for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ballast_conformance.bench import Address, Fleet
from ballast_conformance.case import Result
from ballast_conformance.verdicts import Level, Verdict

_SEEN_SHOWN = 400


def line(result: Result) -> str:
    """One line for one case."""
    case = result.case
    text = f"{result.verdict:4}  {case.level:6}  {case.id:34}  {case.cites}: {case.requires}"
    if result.verdict is Verdict.FAIL:
        text += f" Expected: {_one_line(result.expected)}. Seen: {_one_line(result.seen)}."
    elif result.verdict is Verdict.SKIP:
        text += f" Skipped: {_one_line(result.seen)}."
    return text


def summary(results: Sequence[Result]) -> str:
    """One line for all."""
    parts = []
    for level in Level:
        counts = Counter(result.verdict for result in results if result.case.level is level)
        if counts:
            shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
            parts.append(f"{level}: {shown}")
    return "; ".join(parts)


def failed(results: Iterable[Result], level: Level) -> list[Result]:
    """The failures of one level."""
    return [each for each in results if each.verdict is Verdict.FAIL and each.case.level is level]


def document(picker: Address, fleet: Fleet, results: Sequence[Result]) -> dict[str, Any]:
    """As JSON."""
    return {
        "picker": str(picker),
        "tls": picker.tls,
        "model": fleet.model,
        "endpoints": list(fleet.endpoints),
        "conformant": not failed(results, Level.MUST),
        "cases": [
            {
                "id": result.case.id,
                "level": str(result.case.level),
                "cites": result.case.cites,
                "requires": result.case.requires,
                "verdict": str(result.verdict),
                "expected": result.expected,
                "seen": result.seen,
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ],
    }


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SEEN_SHOWN else flat[: _SEEN_SHOWN - 1] + "…"
