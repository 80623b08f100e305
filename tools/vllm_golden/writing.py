"""The file: gzip JSONL, one `summary`, one `req` per request, one `step` per step (docs/golden.md)."""

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from vllm_golden.driver import Life, Recording

STEP_FIELDS = (
    "composed_at_s",
    "started_at_s",
    "duration_ms",
    "decodes",
    "sum of decode contexts",
    "prefill chunks [tokens, context before, request id]",
    "resumed",
    "preempted",
)
FORMULA = ("overhead_ms", "a_ms", "d_ms_per_token", "k_ms_per_kv_token", "s_ms_per_pair", "b_ms_per_seq")


def write(recording: Recording, path: Path) -> None:
    """The same recording gives the same bytes."""
    with path.open("wb") as sink, gzip.GzipFile("", "wb", compresslevel=9, mtime=0, fileobj=sink) as out:
        for row in _rows(recording):
            out.write((json.dumps(row, separators=(",", ":")) + "\n").encode())


def _rows(recording: Recording) -> Iterator[dict[str, Any]]:
    yield {"summary": summary(recording)}
    for number, life in enumerate(recording.lives):
        yield {"req": _request(recording, number, life)}
    for step in recording.run.steps:
        yield {"step": step}


def summary(recording: Recording) -> dict[str, Any]:
    """Every setting, the law of step times, and totals."""
    import vllm

    case, run = recording.case, recording.run
    scheduler = recording.config.scheduler_config
    pulls = any(life.ask.pull for life in recording.lives)
    link = {
        "setup_s": case.profile.link_setup_s,
        "bytes_per_s": case.link_gbps * 1e9 / 8,
        "bytes_per_token": case.profile.kv_bytes_per_token,
    }
    return {
        "warning": "virtual clock: step times come from the formula, not from a GPU",
        "case": case.name,
        "pins": case.pins,
        "vllm": vllm.__version__,
        "policy": case.policy,
        "prefix_caching": case.prefix_caching,
        "async_scheduling": scheduler.async_scheduling,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_model_len": case.max_model_len,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "block_size": recording.config.cache_config.block_size,
        "kv_blocks": recording.kv_blocks,
        "watermark": scheduler.watermark,
        "early_stop": case.early_stop,
        "remote_prefill": pulls,
        "link": link if pulls else None,
        "kv_role": case.kv_role,
        "lease_s": case.lease_s if case.kv_role else None,
        "idle": "polls",
        "formula": {name: getattr(case.profile, name) for name in FORMULA},
        "requests": len(recording.lives),
        "steps": len(run.steps),
        "end_s": round(recording.end_s, 6),
        "preemptions": sum(life.preempted for life in recording.lives),
        "aborted": sum(life.finished_s is None for life in recording.lives),
        "expired_leases": len(run.worker.expired),
        "late_notifications": run.worker.late_notifications,
        "step_fields": STEP_FIELDS,
    }


def _request(recording: Recording, number: int, life: Life) -> dict[str, Any]:
    ask, times = life.ask, life.times_s
    pull_s = recording.run.worker.started_s.get(str(number))
    row: dict[str, Any] = {
        "id": number,
        "t": ask.arrival_s,
        "pull_s": None if pull_s is None else round(pull_s, 6),
        "n_in": ask.input_tokens,
        "n_out": life.output_tokens,
        "priority": ask.priority,
        "hash_block": ask.hash_block,
        "hash_ids": ask.hash_ids,
        "cached": life.cached,
        "preempted": life.preempted,
    }
    if ask.abort_s is not None:
        row["abort_s"] = ask.abort_s
    if recording.case.kv_role:
        row |= {"pull": ask.pull, "hold": ask.hold}
    if ask.hold:
        row |= {"pulled_after_s": ask.pulled_after_s, "heartbeats_after_s": ask.heartbeats_after_s}
        row["hand_off"] = _hand_off(life)
    row["ttft_ms"] = round((times[0] - ask.arrival_s) * 1e3, 4) if times else None
    row["itl_ms"] = [round((later - sooner) * 1e3, 4) for sooner, later in pairwise(times)]
    return row


def _hand_off(life: Life) -> dict[str, int] | None:
    """What the handle covers."""
    if not life.hand_off:
        return None
    return {
        "tokens": life.hand_off["remote_num_tokens"],
        "blocks": len(life.hand_off["remote_block_ids"][0]),
    }
