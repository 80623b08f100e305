"""The figures of a run: the object that `ballast simulate --json` writes for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.requests.records import Record

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}


def meets(record: Record, objective: Objective) -> bool:
    """Whether a request ended within every threshold. One token has no TPOT and no gap, and meets both."""
    if not record.completed or not objective.allows(record.late_gaps, record.generated_tokens):
        return False
    measured = ((objective.ttft_s, record.ttft_s), (objective.tpot_s, record.tpot_s), (objective.e2e_s, record.e2e_s))
    return all(limit is None or value is None or value <= limit for limit, value in measured)


def summarise(fleet: Fleet, objective: Objective) -> dict[str, object]:
    """The figures of a run, over the requests that arrived in it.

    Times in seconds; rates over the time from first arrival to last token, or to where the run was stopped.
    `kv_hit_ratio` is the share of prompt tokens that the prefilling endpoint's cache held. `tbt_s` are the gaps between
    the tokens of all requests, whatever became of them; `goodput_tok_s` counts all tokens of the requests that met the
    objective.
    """
    records = [record for record in fleet.records if record.arrived]
    done = [record for record in records if record.completed]
    good = [record for record in records if meets(record, objective)]
    met = len(good)
    cut = [record.split for record in records if record.split is not None]
    first_s = min((record.arrival_s for record in records), default=0.0)
    last_s = max((end_s for record in records if (end_s := _last_token_s(record)) is not None), default=first_s)
    arrivals_s = max((record.arrival_s for record in records), default=first_s) - first_s
    span_s = (fleet.kernel.now_s if fleet.stopped else last_s) - first_s
    optimal = [record.optimal for record in records if record.optimal is not None]
    return {
        "requests": len(records),
        "completed": len(done),
        "rejected": sum(record.rejected is not None for record in records),
        "broken": sum(record.broken for record in records),
        "retried": sum(record.dispatches > 1 for record in records),
        "ttft_s": distribution(record.ttft_s for record in done),
        "tpot_s": distribution(record.tpot_s for record in done),
        "e2e_s": distribution(record.e2e_s for record in done),
        **_between_tokens(fleet),
        "goodput_rps": met / span_s if span_s else 0.0,
        "goodput_tok_s": sum(record.generated_tokens for record in good) / span_s if span_s else 0.0,
        "attainment": met / len(records) if records else None,
        "throughput_tok_s": sum(record.generated_tokens for record in records) / span_s if span_s else 0.0,
        "preemptions": fleet.world.preemptions(),
        "preemptions_per_request": _per_request([record.preemptions for record in done]),
        "split_requests": len(cut),
        "segments_run": sum(split.index + 1 for split in cut),
        "kv_exposed_s": fleet.world.transfers.exposed_s,
        "kv_hidden_ratio": fleet.world.transfers.hidden_ratio,
        **_migrations(fleet, records),
        "kv_hit_ratio": _hit_ratio(records),
        "optimal_assignment_ratio": sum(optimal) / len(optimal) if optimal else None,
        "decision_us": {
            name: float(np.percentile(fleet.decision_s, share)) * 1e6 if fleet.decision_s else None
            for name, share in (("p50", 50), ("p99", 99))
        },
        "arrivals_s": arrivals_s,
        "duration_s": span_s,
    }


def _last_token_s(record: Record) -> float | None:
    """A broken stream has newest tokens, too, and they count."""
    return record.newest_token_s if record.broken else record.last_token_s


def _between_tokens(fleet: Fleet) -> dict[str, object]:
    """The papers' physics do not time single tokens."""
    if fleet.settings.physics != "vllm":
        return {"tbt_s": distribution(()), "tbt_late_ratio": None}
    return {"tbt_s": fleet.gaps.distribution(PERCENTILES), "tbt_late_ratio": fleet.gaps.late_ratio}


def _per_request(counts: Sequence[int]) -> dict[str, float | None]:
    return {"mean": sum(counts) / len(counts), "max": max(counts)} if counts else {"mean": None, "max": None}


def _migrations(fleet: Fleet, records: Iterable[Record]) -> dict[str, object]:
    """Requests moved; those not moved by reason; from the cut to the next token; KV that went over links for it."""
    found = fleet.migrations.figures
    pauses = distribution(found.pauses_s)
    return {
        "migrations": sum(record.migrations for record in records),
        "migrations_failed": {why.value: found.not_moved[why] for why in sorted(found.not_moved)},
        "migration_pause_s": {name: pauses[name] for name in ("p50", "p99")},
        "migrated_bytes": fleet.world.copied_bytes,
    }


def _hit_ratio(records: Iterable[Record]) -> float:
    prefilled = [(record.cached_tokens, record.input_tokens) for record in records if record.cached_tokens is not None]
    return sum(cached for cached, _ in prefilled) / max(1, sum(tokens for _, tokens in prefilled))


def distribution(values: Iterable[float | None]) -> dict[str, float | None]:
    """Mean and percentiles (linear interpolation); None where there is no value."""
    known = np.array([value for value in values if value is not None])
    if known.size == 0:
        return dict.fromkeys(("mean", *PERCENTILES))
    quantiles = np.percentile(known, list(PERCENTILES.values()))
    return {"mean": float(known.mean()), **{name: float(q) for name, q in zip(PERCENTILES, quantiles, strict=True)}}
