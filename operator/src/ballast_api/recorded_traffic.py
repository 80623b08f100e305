"""Recorded traffic: the rows that a gateway gives of the last minutes' requests, and one trace of many gateways' rows.

A gateway asked by `TRAFFIC` alone answers with a trace: blocks and classes are numbered within that answer. Asked with
`?names=SECRET` it gives *named* rows: blocks and classes have names that are the same at all gateways that are asked
with the same secret, and nothing is corrected yet. `merged` makes one trace of such rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

TRAFFIC: Final = "/ballast/v1/traffic"
"""Path of the admin API."""
TAKEN: Final = "taken_tokens"
"""Of a named row whose prompt an engine has counted: how many tokens the gateway took it for."""


def merged(parts: Iterable[bytes]) -> Iterator[bytes]:
    """One trace, as JSON lines in order of arrival, of the named rows of several gateways.

    Each part is the whole answer of one gateway. Blocks and classes are numbered anew, and prompts that no engine
    counted are corrected as in one gateway's trace, by what engines counted of all. Raises `ValueError` for a part that
    has a line that is no row.
    """
    rows = [_row(line) for part in parts for line in part.splitlines() if line]
    rows.sort(key=lambda row: row["arrival_s"])
    tokens_per_token = _measured_ratio(rows)
    blocks: dict[int, int] = {}
    classes: dict[int, int] = {}
    for row in rows:
        row.pop(TAKEN, None)
        row["class"] = classes.setdefault(row["class"], len(classes))
        if "hash_ids" in row:
            size = max(1, round(row["block_size"] * tokens_per_token))
            kept = row["hash_ids"][: -(-row["input_tokens"] // size)]
            row |= {"hash_ids": [blocks.setdefault(name, len(blocks)) for name in kept], "block_size": size}
        yield json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _row(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or not {"arrival_s", "input_tokens", "class"} <= row.keys():
        raise ValueError(f"no row of recorded traffic: {line[:80]!r}")
    return row


def _measured_ratio(rows: Iterable[dict[str, Any]]) -> float:
    """Tokens that engines counted for one that a gateway took."""
    measured = [(row["input_tokens"], row[TAKEN]) for row in rows if row.get(TAKEN)]
    return sum(real for real, _ in measured) / sum(taken for _, taken in measured) if measured else 1.0
