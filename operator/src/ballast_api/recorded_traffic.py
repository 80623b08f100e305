"""Recorded traffic: the rows that a gateway gives of the last minutes' requests, and one trace of many gateways' rows.

A gateway asked by `TRAFFIC` alone answers with a trace: blocks and classes are numbered within that answer. Asked with
`?names=SECRET` it gives *named* rows: blocks and classes have names that are the same at all gateways that are asked
with the same secret, and nothing is corrected yet. `rows_of` reads such rows, and `merged` makes one trace of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]
"""A named row: a request, by the fields of its JSON line."""

TRAFFIC: Final = "/ballast/v1/traffic"
"""Path of the admin API."""
TAKEN: Final = "taken_tokens"
"""Of a named row whose prompt an engine has counted: how many tokens the gateway took it for."""


def rows_of(answer: bytes) -> list[Row]:
    """The named rows of a gateway's whole answer. Raises `ValueError` for a line that is none."""
    return [_row(line) for line in answer.splitlines() if line]


def merged(rows: Iterable[Row]) -> Iterator[bytes]:
    """One trace, as JSON lines in order of arrival, of the named rows of several gateways.

    Blocks and classes are numbered anew, and prompts that no engine counted are corrected as in one gateway's trace, by
    what engines counted of all.
    """
    rows = sorted(rows, key=lambda row: row["arrival_s"])
    tokens_per_token = _measured_ratio(rows)
    blocks: dict[int, int] = {}
    classes: dict[int, int] = {}
    for named in rows:
        row = {key: value for key, value in named.items() if key != TAKEN}
        row["class"] = classes.setdefault(row["class"], len(classes))
        if "hash_ids" in row:
            size = max(1, round(row["block_size"] * tokens_per_token))
            kept = row["hash_ids"][: -(-row["input_tokens"] // size)]
            row |= {"hash_ids": [blocks.setdefault(name, len(blocks)) for name in kept], "block_size": size}
        yield json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _row(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or not _fits(row):
        raise ValueError(f"no row of recorded traffic: {line[:80]!r}")
    return row


def _fits(row: Row) -> bool:
    """Whether the fields that `merged` reads are there and hold what it takes them for."""
    blocks = row.get("hash_ids", [])
    return (
        _is_time(row.get("arrival_s"))
        and all(map(_is_count, (row.get("input_tokens"), row.get("class"), row.get(TAKEN, 0))))
        and isinstance(blocks, list)
        and set(map(type, blocks)) <= {int}
        and ("hash_ids" not in row or _is_count(row.get("block_size")))
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_time(value: object) -> bool:
    return _is_count(value) or (isinstance(value, float) and math.isfinite(value))


def _measured_ratio(rows: Iterable[Row]) -> float:
    """Tokens that engines counted for one that a gateway took."""
    measured = [(row["input_tokens"], row[TAKEN]) for row in rows if row.get(TAKEN)]
    return sum(real for real, _ in measured) / sum(taken for _, taken in measured) if measured else 1.0
