"""What is kept of scaling decisions: a ConfigMap that looks and the next operator go by. Pure.

Its key `state` is small and has all that a decision leaves behind: the counts that are asked for, what windows
remember, and the last decision for the status. Its key `records` has the last decisions in full, for people. It is
written before anything is done, so an operator that dies goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ballast_api import names
from ballast_api.serving_pool import ScalingDecision
from ballast_core.policies.scaling.protocol import Counts, Layout, Memory, Recommended
from ballast_operator.kinds import CONFIG_MAP, Manifest

STATE, RECORDS = "state", "records"
MOST_RECORDS: Final = 24
"""Decisions that are kept..."""
MOST_OTHERS: Final = 8
"""...and how many of them changed nothing, at most, once there are too many..."""
MOST_BYTES: Final = 96_000
"""...and their size as JSON: a ConfigMap holds 1 MiB, and every look reads it."""
_JUST_BEFORE_S: Final = 1e-3

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """What one ServingPool's decisions left behind."""

    mode: str = ""
    """Auto or Advisory: in which mode they were taken."""
    wanted: Mapping[str, Counts] = field(default_factory=dict)
    """By name of the pool: asked for, or advised."""
    memory: Memory = field(default_factory=Memory)
    startup_s: float | None = None
    """As measured last."""
    last: ScalingDecision | None = None
    records: tuple[Record, ...] = ()
    """The oldest first."""

    def asked(self, pool: str) -> Counts | None:
        """What the operator itself is to give a pool; None where it has not decided that."""
        return self.wanted.get(pool) if self.mode == "Auto" else None


NOTHING: Final = Stored()


def stored_among(children: Iterable[Manifest], serving_pool: str) -> Stored:
    """The state without records; `NOTHING` where there is none."""
    name = names.scaling_name(serving_pool)
    for child in children:
        if child["kind"] == CONFIG_MAP.kind and child["metadata"]["name"] == name:
            return read(child, with_records=False)
    return NOTHING


def read(manifest: Manifest, *, with_records: bool = True) -> Stored:
    """What a ConfigMap says. Text that is not ours says nothing: the next decision writes it anew."""
    data = manifest.get("data") or {}
    try:
        state = json.loads(data.get(STATE, ""))
        last = state.get("last")
        return Stored(
            mode=str(state["mode"]),
            wanted={str(pool): _counts(counts) for pool, counts in state["wanted"].items()},
            memory=Memory(
                tuple(map(str, state["pools"])),
                tuple(Recommended(float(at_s), tuple(map(_counts, layout))) for at_s, layout in state["recommended"]),
            ),
            startup_s=None if state.get("startup_s") is None else float(state["startup_s"]),
            last=None if last is None else ScalingDecision.parse(last),
            records=tuple(filter(_is_dated, records_of(manifest))) if with_records else (),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return NOTHING


def records_of(manifest: Manifest) -> list[Record]:
    """The decisions in full. Raises `ValueError` for text that is no list of records."""
    found = json.loads((manifest.get("data") or {}).get(RECORDS, "[]"))
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("no list of decisions")
    return found


def written(stored: Stored) -> dict[str, str]:
    """The ConfigMap's data."""
    state = {
        "mode": stored.mode,
        "wanted": {pool: [counts.prefill, counts.decode] for pool, counts in stored.wanted.items()},
        "pools": list(stored.memory.pools),
        "recommended": [[round(each.at_s, 3), _plain(each.layout)] for each in runs(stored.memory.recommended)],
        "startup_s": stored.startup_s,
        "last": None if stored.last is None else stored.last.dump(),
    }
    records = "[" + ",\n".join(_json(record) for record in stored.records) + "]"
    return {STATE: _json(state), RECORDS: records}


def bounded(records: Sequence[Record]) -> tuple[Record, ...]:
    """The newest, those that changed something before the others, within the bounds. The last one always stays."""
    kept = list(records)
    sizes = [len(_json(record)) for record in kept]
    while len(kept) > 1 and (len(kept) > MOST_RECORDS or sum(sizes) > MOST_BYTES):
        others = [k for k, record in enumerate(kept[:-1]) if not record.get("changes")]
        gone = others[0] if len(others) > MOST_OTHERS else 0
        del kept[gone], sizes[gone]
    return tuple(kept)


def runs(recommended: Sequence[Recommended]) -> list[Recommended]:
    """The first of each run of equal layouts: what is worth writing."""
    return [each for k, each in enumerate(recommended) if k == 0 or each.layout != recommended[k - 1].layout]


def resumed(memory: Memory, now_s: float) -> Memory:
    """A memory of runs as a policy takes it: each layout was right until the next one was, and the last one until now.

    What lies in the future is left out: the clock has been put back between two operators.
    """
    past = [each for each in memory.recommended if each.at_s < now_s]
    found: list[Recommended] = []
    for k, each in enumerate(past):
        end_s = (past[k + 1].at_s if k + 1 < len(past) else now_s) - _JUST_BEFORE_S
        found += [each, *([Recommended(end_s, each.layout)] if end_s > each.at_s else ())]
    return Memory(memory.pools, tuple(found))


def _is_dated(record: Record) -> bool:
    return isinstance(record.get("at_s"), (int, float))


def _counts(value: Any) -> Counts:
    prefill, decode = value
    return Counts(max(0, int(prefill)), max(0, int(decode)))


def _plain(layout: Layout) -> list[list[int]]:
    return [[counts.prefill, counts.decode] for counts in layout]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
