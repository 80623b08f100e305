"""The suite, asked by tests of a picker on loopback."""

from __future__ import annotations

from dataclasses import replace

from ballast_conformance import finding, suite
from ballast_conformance.bench import Plan
from ballast_conformance.case import Result
from ballast_conformance.verdicts import Verdict

PLAN = Plan(timeout_s=5.0, quiet_s=0.02, large_bytes=200_000, streams=8, flood=60)

IMPATIENT = replace(PLAN, timeout_s=2.0)
"""For pickers that hang: each hang costs as long. An honest one on a busy machine answers within it."""


async def ask(
    port: int, endpoints: tuple[str, ...], *, plan: Plan = PLAN, health_port: int | None = None
) -> list[Result]:
    """All results, found and asked as the command does."""
    picker = await finding.with_transport("127.0.0.1", port, None, plan.timeout_s)
    health = await finding.health(picker, None if health_port is None else ("127.0.0.1", health_port), plan.timeout_s)
    fleet = await finding.fleet(picker, plan, model="m", endpoints=endpoints)
    return await suite.run(picker, health, fleet, plan)


def ids(results: list[Result], verdict: Verdict) -> set[str]:
    """The cases that ended like this."""
    return {result.case.id for result in results if result.verdict is verdict}
