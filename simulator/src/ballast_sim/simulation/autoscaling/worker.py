"""One rehearsal in a process of its own, which the operator starts: `python -m` with this module.

A job comes on stdin, the answer goes to stdout. It is nice to others, has a bound of processor time, and ends with its
stdin: so none is left behind by an operator that was killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ballast_api.rehearsal_job import RehearsalAnswer, RehearsalJob, read_job
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_core.attainment import Objective as Promised
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding
from ballast_sim.simulation.autoscaling.rehearsal import InForce, NotRehearsed, Recorded, Rehearser, plain
from ballast_sim.simulation.autoscaling.settings import Rehearsing
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective

_NICE: Final = 19
_LEAST_TOLD: Final = 0.5
"""Of the requests that were served, so many at least must tell how long their output was."""


def main() -> None:
    """Answer the one job."""
    source = sys.stdin.buffer
    length = int.from_bytes(source.read(8), "big")
    job = read_job(source.read(length))
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    seconds = math.ceil(job.cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(job)))
    sys.stdout.buffer.flush()
    os._exit(0)  # the thread still reads


def answer(job: RehearsalJob) -> RehearsalAnswer:
    """What the candidates come to. Nothing that a job holds raises."""
    try:
        recorded = recorded_rows(job.rows)
        told = [each for each in recorded if each.completed]
        if told and sum(each.output_tokens > 0 for each in told) < _LEAST_TOLD * len(told):
            raise NotRehearsed("recorded requests do not tell how long their outputs were")
        pools = job.proposal.inputs.pools
        director = DirectorSettings(
            **SchedulingPolicySpec.parse(job.policy).build().parts(),
            binding=Binding.LATE,
            profiles={pool.profile.name: pool.profile for pool in pools},
        )
        rehearser = Rehearser(director, plain(FleetSettings()), tightest(job.proposal.inputs.objectives), Rehearsing())
        in_force = [InForce(each.at_s, each.layout) for each in job.in_force]
        return RehearsalAnswer(rehearsals=tuple(rehearser(job.proposal, recorded, in_force)))
    except NotRehearsed as error:
        return RehearsalAnswer(problem=str(error))
    except (ValueError, LookupError, ArithmeticError, TypeError) as error:
        return RehearsalAnswer(problem=f"recorded traffic cannot be replayed: {error}")


def recorded_rows(rows: Iterable[bytes]) -> list[Recorded]:
    """In order of arrival; requests that never got to an engine do not count. Raises ValueError, KeyError, TypeError
    for lines that are no rows."""
    parsed = [json.loads(line) for line in rows]
    found = [_recorded(row) for row in parsed if row["outcome"] in {"completed", "running", "failed", "cancelled"}]
    return sorted(found, key=lambda each: each.arrival_s)


def tightest(objectives: Iterable[Promised]) -> Objective:
    """Of several classes the tightest threshold of each kind, as the arithmetic has it."""
    every = list(objectives)

    def least(name: str) -> float | None:
        return min((limit for each in every if (limit := getattr(each, name)) is not None), default=None)

    return Objective(ttft_s=least("ttft_s"), tpot_s=least("tpot_s"), e2e_s=least("e2e_s"))


def _recorded(row: dict[str, Any]) -> Recorded:
    hash_ids, limit = row.get("hash_ids"), row.get("max_tokens")
    return Recorded(
        arrival_s=float(row["arrival_s"]),
        input_tokens=max(1, int(row["input_tokens"])),
        output_tokens=max(0, int(row["output_tokens"])),
        running=row["outcome"] == "running",
        completed=row["outcome"] == "completed",
        hash_ids=None if not hash_ids else tuple(map(int, hash_ids)),
        block_size=int(row["block_size"]) if hash_ids else None,
        max_tokens=None if limit is None else int(limit),
        traffic_class=str(row["class"]),
    )


def _end_with(source: Any) -> None:
    source.read()
    os._exit(1)


if __name__ == "__main__":
    main()
