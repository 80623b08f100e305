"""A recorded run of vLLM's scheduler as a golden file: gzip JSONL, one row an object.

One `summary` with every setting and the step-time formula; one `req` per request (arrival, lengths, prefix ids, every
token time); one `step` per engine step that computed something.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import EngineConfig

TIME_TOLERANCE_S = 2e-5  # the files round times to 1 us and durations to 0.1 us
DEFAULT_LEASE_S = 30.0
CONSUMERS = ("kv_consumer", "kv_both")
PRODUCERS = ("kv_producer", "kv_both")


class GoldenFileError(ValueError):
    """A golden file that cannot be read; the message names file, line and reason."""


@dataclass(frozen=True, slots=True)
class GoldenRequest:
    """One recorded request; `token_times_s` are absolute.

    `cached_tokens` is None where it had no first token. `hold`: its KV is kept for another engine, which sends
    heartbeats `heartbeats_after_s` its end, and pulls `pulled_after_s` its end (None: never).
    """

    request_id: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    priority: int
    hash_ids: Sequence[int] | None
    hash_block: int | None
    cached_tokens: int | None
    preemptions: int
    token_times_s: Sequence[float]
    pull: bool
    hold: bool
    pulled_after_s: float | None
    heartbeats_after_s: Sequence[float]
    hand_off: tuple[int, int] | None  # tokens, blocks
    abort_s: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step: when, how long, and what it computed."""

    composed_s: float
    started_s: float
    duration_s: float
    decodes: int
    decode_context_tokens: int
    prefills: tuple[tuple[int, int, int], ...]
    resumed: int
    preempted: int

    def same_work(self, other: "Step") -> bool:
        """Whether both computed the same tokens of the same requests."""
        return (
            self.decodes == other.decodes
            and self.decode_context_tokens == other.decode_context_tokens
            and self.prefills == other.prefills
            and self.resumed == other.resumed
            and self.preempted == other.preempted
        )

    def same_time(self, other: "Step") -> bool:
        """Whether both were composed and started at the same time, within the files' rounding."""
        return (
            abs(self.composed_s - other.composed_s) <= TIME_TOLERANCE_S
            and abs(self.started_s - other.started_s) <= TIME_TOLERANCE_S
        )


@dataclass(frozen=True, slots=True)
class Golden:
    """A whole recorded run."""

    path: Path
    summary: dict[str, Any]
    requests: list[GoldenRequest]
    steps: list[Step]


def read_golden(path: Path) -> Golden:
    """Read a golden file. Raises GoldenFileError."""
    summary: dict[str, Any] | None = None
    requests: list[GoldenRequest] = []
    steps: list[Step] = []
    for number, line in _lines(path):
        try:
            row = json.loads(line)
            if "summary" in row:
                summary = row["summary"]
            elif "req" in row:
                requests.append(_request(row["req"], bool(summary and summary.get("remote_prefill"))))
            elif "step" in row:
                steps.append(_step(row["step"]))
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
            raise GoldenFileError(
                f"{path}: line {number}: not a golden row ({type(error).__name__}: {error})"
            ) from error
    if summary is None or not requests:
        raise GoldenFileError(f"{path}: no summary or no requests; expected a file made by the golden generator")
    return Golden(path, summary, requests, steps)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise GoldenFileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _request(row: dict[str, Any], pulls: bool) -> GoldenRequest:
    """`pulls`: the summary's value for all requests, used where a row has none of its own."""
    times: list[float] = []
    if row["ttft_ms"] is not None:  # else it left before its first token
        first_s = row["t"] + row["ttft_ms"] / 1e3
        later_s = first_s + np.cumsum(np.asarray(row["itl_ms"], dtype=float)) / 1e3
        times = [first_s, *later_s.tolist()]
    handle = row.get("hand_off")
    return GoldenRequest(
        request_id=row["id"],
        arrival_s=row["t"],
        input_tokens=row["n_in"],
        output_tokens=row["n_out"],
        priority=row["priority"],
        hash_ids=row["hash_ids"],
        hash_block=row["hash_block"],
        cached_tokens=row["cached"],
        preemptions=row["preempted"],
        token_times_s=times,
        pull=row.get("pull", pulls),
        hold=row.get("hold", False),
        pulled_after_s=row.get("pulled_after_s"),
        heartbeats_after_s=row.get("heartbeats_after_s", ()),
        hand_off=(handle["tokens"], handle["blocks"]) if handle else None,
        abort_s=row.get("abort_s"),
    )


def _step(row: list[Any]) -> Step:
    composed_s, started_s, duration_ms, decodes, context, prefills, resumed, preempted = row
    chunks = tuple((int(n), int(before), int(request)) for n, before, request in prefills)
    return Step(composed_s, started_s, duration_ms / 1e3, decodes, context, chunks, resumed, preempted)


def golden_config(summary: dict[str, Any]) -> EngineConfig:
    """The engine that a summary describes."""
    kv_blocks, block_size = summary["kv_blocks"], summary["block_size"]
    link, role = summary["link"], summary.get("kv_role")
    timer = HardwareProfile(
        name="golden",
        kv_tokens=kv_blocks * block_size,
        kv_bytes_per_token=1,
        block_size=block_size,
        **summary["formula"],
    )
    return EngineConfig(
        timer=timer,
        kv_blocks=kv_blocks,
        block_size=block_size,
        max_model_len=summary["max_model_len"],
        max_num_batched_tokens=summary["max_num_batched_tokens"],
        max_num_seqs=summary["max_num_seqs"],
        prefix_caching=summary["prefix_caching"],
        async_scheduling=summary["async_scheduling"],
        policy=summary["policy"],
        watermark_blocks=math.ceil(summary["watermark"] * kv_blocks),
        long_prefill_token_threshold=summary["long_prefill_token_threshold"],
        pulls_kv=summary["remote_prefill"] if role is None else role in CONSUMERS,
        hands_over_kv=role in PRODUCERS,
        lease_s=summary.get("lease_s") or DEFAULT_LEASE_S,
        pull_setup_s=link["setup_s"] if link else None,
        pull_s_per_token=link["bytes_per_token"] / link["bytes_per_s"] if link else 0.0,
        jump_idle_steps=summary.get("idle") != "polls",
    )
