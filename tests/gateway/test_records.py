"""The canonical log line of a request: what `json` would write, without the fields that do not apply."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway.records import MoveOutcome, MoveRecord, RequestRecord

times = st.floats(0, 1e6)
counts = st.integers(0, 3) | st.integers(0, 10**9)
records = st.builds(
    RequestRecord,
    id=st.text(max_size=8),
    arrived_s=times,
    path=st.text(max_size=8),
    model=st.text(max_size=8),
    stream=st.booleans(),
    prompt_tokens=counts,
    prefill=st.text(max_size=3),
    cut_tokens=counts,
    decode=st.text(max_size=3),
    dispatches=counts,
    prefilled_s=st.none() | times,
    first_token_s=st.none() | times,
    ended_s=times,
    output_tokens=counts,
    status=st.sampled_from([0, 200, 503]),
    outcome=st.sampled_from(["completed", "failed"]),
    reason=st.text(max_size=3),
    detail=st.text(max_size=9),
    moves=st.lists(st.builds(MoveRecord, st.sampled_from(MoveOutcome)), max_size=3).map(tuple),
    rescues=counts,
)


def as_dict(record: RequestRecord) -> dict[str, Any]:
    """All of it, field by field."""

    def since_arrival(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - record.arrived_s, 6)

    line = {
        "time": "now",
        "event": "request",
        "request_id": record.id,
        "path": record.path,
        "model": record.model,
        "stream": record.stream,
        "status": record.status,
        "outcome": record.outcome,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "e2e_s": round(record.e2e_s, 6),
    }
    optional = {
        "reason": record.reason,
        "detail": record.detail,
        "prefill": record.prefill,
        "cut_tokens": record.cut_tokens,
        "decode": record.decode,
        "retries": record.retries,
        "migrations": sum(move.outcome is MoveOutcome.MOVED for move in record.moves),
        "rescues": record.rescues,
        "prefill_s": since_arrival(record.prefilled_s),
        "ttft_s": since_arrival(record.first_token_s),
        "tpot_s": None if record.tpot_s is None else round(record.tpot_s, 6),
    }
    return line | {key: value for key, value in optional.items() if value not in (None, "", 0)}


@given(records)
def test_the_line_is_byte_for_byte_what_json_writes(record: RequestRecord) -> None:
    assert record.as_json("now") == json.dumps(as_dict(record), separators=(",", ":"))
