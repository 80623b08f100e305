"""All cases, and how they are run."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ballast_conformance.bench import Address, Bench, Fleet, Plan
from ballast_conformance.case import Case, Result
from ballast_conformance.cases import (
    body,
    destination,
    errors,
    framing,
    headers,
    health,
    modes,
    response,
    streams,
    subset,
)
from ballast_conformance.verdicts import Failed, Skipped, Verdict

ALL: Final[tuple[Case, ...]] = tuple(
    case
    for part in (destination, subset, body, response, modes, headers, errors, streams, framing, health)
    for case in part.CASES.all
)


def chosen(patterns: Sequence[str]) -> tuple[Case, ...]:
    """The cases whose ids match one of these shell patterns; all if there are none. Raises `ValueError` for none."""
    if not patterns:
        return ALL
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.id, pattern) for case in ALL):
            raise ValueError(f"no case matches {pattern!r}")
    return tuple(case for case in ALL if any(fnmatch.fnmatchcase(case.id, pattern) for pattern in patterns))


async def run(
    picker: Address,
    health_at: Address | None,
    fleet: Fleet,
    plan: Plan,
    *,
    cases: Iterable[Case] = ALL,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run cases one after the other, each on connections of its own; `on_result` gets each result as it comes."""
    results = []
    for case in cases:
        bench = Bench(picker, health_at, fleet, plan)
        begun = time.monotonic()
        try:
            verdict, expected, seen = await _tried(case, bench)
        finally:
            await bench.close()
        results.append(Result(case, verdict, expected, seen, time.monotonic() - begun))
        on_result(results[-1])
    return results


async def _tried(case: Case, bench: Bench) -> tuple[Verdict, str, str]:
    try:
        await case.trial(bench)
    except Failed as failed:
        return Verdict.FAIL, failed.expected, failed.seen
    except Skipped as skipped:
        return Verdict.SKIP, "", str(skipped)
    except (OSError, TimeoutError) as error:
        return Verdict.FAIL, "a connection", str(error) or f"nothing for {bench.plan.timeout_s:g} s"
    return Verdict.PASS, "", ""
