"""Compare our engine with a recorded run of vLLM's own scheduler, step by step.

A golden file is gzip JSONL: one `summary` with every setting and the step-time formula, one `req` per request
(arrival, lengths, prefix ids, every token time), one `step` per engine step that computed something. It is complete
in itself: settings, formula and requests are read from it, our engine runs on them, and the first step that differs
names the rule that we have wrong.
"""

import gzip
import heapq
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import (
    BlockHashes,
    CoarseEngine,
    Engine,
    EngineConfig,
    EngineRequest,
    Finished,
    StepEnded,
    TokensAdvanced,
    TraceContent,
    UniqueContent,
)
from ballast_sim.engine.vllm.batch import Batch

TIME_TOLERANCE_S = 2e-5  # the files round times to 1 us and durations to 0.1 us
DEFAULT_LEASE_S = 30.0
CONSUMERS = ("kv_consumer", "kv_both")
PRODUCERS = ("kv_producer", "kv_both")
STOP_MARGIN_TOKENS = 50  # max_tokens beyond the stop token, in files made with early_stop


class GoldenFileError(ValueError):
    """A golden file that cannot be read; the message names file, line and reason."""


@dataclass(frozen=True, slots=True)
class GoldenRequest:
    """One recorded request; `token_times_s` are absolute.

    `cached_tokens` is None where it did not come to a first token. `hold`: its KV stays for another engine, which says
    `heartbeats_after_s` its end that it still means to pull, and pulls `pulled_after_s` it (None: never).
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
    """`pulls`: what the summary says of all requests, where a request does not say it of itself."""
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


def _engine_request(row: GoldenRequest, summary: dict[str, Any], config: EngineConfig) -> EngineRequest:
    content: BlockHashes
    if row.hash_ids and row.hash_block:
        content = TraceContent(row.hash_ids, row.hash_block, row.input_tokens, config.block_size, row.request_id)
    else:
        content = UniqueContent(row.request_id)
    stop_after = row.output_tokens if summary["early_stop"] else None
    return EngineRequest(
        request_id=str(row.request_id),
        input_tokens=row.input_tokens,
        max_tokens=row.output_tokens + (STOP_MARGIN_TOKENS if summary["early_stop"] else 0),
        stop_after=stop_after,
        content=content,
        arrival_s=row.arrival_s,
        priority=row.priority,
        pull=row.pull,
        hold=row.hold,
    )


@dataclass(slots=True)
class Replay:
    """What our engine did with a golden file's requests."""

    steps: list[Step]
    token_times_s: dict[int, list[float]]
    finished: dict[int, Finished]
    expired_leases: int = 0


class _Script:
    """Everything that is told to the engine, in order of time; arrivals go before what else comes at the same time."""

    def __init__(self, golden: Golden, config: EngineConfig, engine: Engine) -> None:
        self._engine = engine
        self._due: list[tuple[float, int, int, Callable[[float], object]]] = []
        self._numbers = count()
        for row in golden.requests:
            request = _engine_request(row, golden.summary, config)
            self._at(row.arrival_s, 0, lambda now_s, request=request: engine.add(request, now_s))  # type: ignore[misc]
            if row.abort_s is not None:
                self._at(row.abort_s, 1, lambda now_s, name=request.request_id: engine.abort(name, now_s))  # type: ignore[misc]

    def _at(self, at_s: float, rank: int, tell: Callable[[float], object]) -> None:
        heapq.heappush(self._due, (at_s, rank, next(self._numbers), tell))

    def next_s(self) -> float:
        """When there is something to tell; infinity at the end."""
        return self._due[0][0] if self._due else math.inf

    def tell(self) -> None:
        """What is due next."""
        at_s, _, _, tell = heapq.heappop(self._due)
        tell(at_s)

    def handed_over(self, row: GoldenRequest, end: Finished) -> None:
        """What the other engine will say, now that it has the handle."""
        engine, name = self._engine, end.request_id
        pulled_after_s = math.inf if row.pulled_after_s is None else row.pulled_after_s
        for after_s in row.heartbeats_after_s:
            if after_s < pulled_after_s:
                self._at(end.at_s + after_s, 1, lambda now_s: engine.extend_lease(name, now_s))
        if row.pulled_after_s is not None:
            self._at(end.at_s + row.pulled_after_s, 1, lambda now_s: engine.release(name, now_s))


def replay(golden: Golden, *, coarse: bool = False) -> Replay:
    """Run our engine on a golden file's settings and requests: step by step, or `coarse`, from change to change."""
    steps: list[Step] = []
    config = golden_config(golden.summary)
    kind = CoarseEngine if coarse else Engine
    engine = kind(config, on_step=lambda now_s, batch: steps.append(_observed(now_s, batch)))
    rows = {row.request_id: row for row in golden.requests}
    result = Replay(steps, {request_id: [] for request_id in rows}, {})
    script = _Script(golden, config, engine)
    while True:
        due_s = engine.next_event_s()
        if script.next_s() <= due_s < math.inf or script.next_s() < due_s:
            script.tell()
            continue
        if due_s == math.inf:
            result.expired_leases = engine.expired_leases
            return result
        for event in engine.advance(due_s):
            match event:
                case StepEnded():
                    for request_id in event.tokens:
                        result.token_times_s[int(request_id)].append(event.at_s)
                case TokensAdvanced():
                    result.token_times_s[int(event.request_id)] += event.times_s
                case Finished():
                    number = int(event.request_id)
                    result.finished[number] = event
                    if event.hand_off is not None:
                        script.handed_over(rows[number], event)
                case _:
                    pass


def _observed(now_s: float, batch: Batch) -> Step:
    prefills = tuple(
        (tokens, context, int(state.request_id)) for state, tokens, context, _, decode in batch.chunks if not decode
    )
    return Step(
        now_s,
        batch.starts_s,
        batch.ends_s - batch.starts_s,
        batch.decodes,
        batch.decode_context_tokens,
        prefills,
        batch.resumed,
        batch.preempted,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far our run is from the recorded one. A ratio is ours / golden - 1."""

    file: str
    requests: int
    steps_ours: int
    steps_golden: int
    first_differing_step: int | None
    ttft_p99_error_ratio: float
    tpot_p99_error_ratio: float
    token_time_error_s: dict[str, float]
    cached_tokens_ours: int
    cached_tokens_golden: int
    preemptions_ours: int
    preemptions_golden: int
    expired_leases_ours: int
    expired_leases_golden: int
    differing_hand_offs: int
    missing_tokens: int

    def within(self, tolerance_ratio: float) -> bool:
        """Whether both P99 errors are small enough and no token is missing."""
        worst = max(abs(self.ttft_p99_error_ratio), abs(self.tpot_p99_error_ratio))
        return self.missing_tokens == 0 and worst <= tolerance_ratio

    def as_json(self) -> dict[str, Any]:
        """The row that `ballast validate --json` prints."""
        return {
            "file": self.file,
            "requests": self.requests,
            "steps": {"ours": self.steps_ours, "golden": self.steps_golden},
            "first_differing_step": self.first_differing_step,
            "ttft_p99_error_ratio": self.ttft_p99_error_ratio,
            "tpot_p99_error_ratio": self.tpot_p99_error_ratio,
            "token_time_error_s": self.token_time_error_s,
            "cached_tokens": {"ours": self.cached_tokens_ours, "golden": self.cached_tokens_golden},
            "preemptions": {"ours": self.preemptions_ours, "golden": self.preemptions_golden},
            "expired_leases": {"ours": self.expired_leases_ours, "golden": self.expired_leases_golden},
            "differing_hand_offs": self.differing_hand_offs,
            "missing_tokens": self.missing_tokens,
        }


def first_difference(ours: Sequence[Step], golden: Sequence[Step]) -> int | None:
    """Number of the first step that differs in work or time; None where the runs are the same."""
    for number, (mine, theirs) in enumerate(zip(ours, golden, strict=False)):
        if not (mine.same_work(theirs) and mine.same_time(theirs)):
            return number
    return None if len(ours) == len(golden) else min(len(ours), len(golden))


def compare(golden: Golden) -> Comparison:
    """Replay a golden file and measure the difference."""
    ours = replay(golden)
    errors: list[float] = []
    missing = 0
    for row in golden.requests:
        mine = ours.token_times_s[row.request_id]
        missing += abs(len(row.token_times_s) - len(mine))
        errors += [abs(a - b) for a, b in zip(mine, row.token_times_s, strict=False)]
    golden_times = {row.request_id: row.token_times_s for row in golden.requests}
    ttft = [_p99(_ttfts(golden.requests, times)) for times in (ours.token_times_s, golden_times)]
    tpot = [_p99(_tpots(times.values())) for times in (ours.token_times_s, golden_times)]
    # A request that left before its first token has no count of cached tokens.
    counted = [row for row in golden.requests if row.cached_tokens is not None and row.request_id in ours.finished]
    quantiles = np.quantile(errors, [0.5, 0.99, 1.0]) if errors else [math.nan] * 3
    return Comparison(
        file=golden.path.name,
        requests=len(golden.requests),
        steps_ours=len(ours.steps),
        steps_golden=len(golden.steps),
        first_differing_step=first_difference(ours.steps, golden.steps),
        ttft_p99_error_ratio=_error_ratio(*ttft),
        tpot_p99_error_ratio=_error_ratio(*tpot),
        token_time_error_s=dict(zip(("p50", "p99", "max"), (float(q) for q in quantiles), strict=True)),
        cached_tokens_ours=sum(ours.finished[row.request_id].stats.cached_tokens for row in counted),
        cached_tokens_golden=sum(row.cached_tokens or 0 for row in counted),
        preemptions_ours=sum(end.stats.preemptions for end in ours.finished.values()),
        preemptions_golden=sum(row.preemptions for row in golden.requests),
        expired_leases_ours=ours.expired_leases,
        expired_leases_golden=golden.summary.get("expired_leases", 0),
        differing_hand_offs=sum(row.hand_off != _hand_off(ours, row) for row in golden.requests),
        missing_tokens=missing,
    )


def _hand_off(ours: Replay, row: GoldenRequest) -> tuple[int, int] | None:
    """What our handle covers: tokens and blocks."""
    end = ours.finished.get(row.request_id)
    return None if end is None or end.hand_off is None else (end.hand_off.tokens, len(end.hand_off.blocks))


def _ttfts(
    requests: Iterable[GoldenRequest], times: "dict[int, list[float]] | dict[int, Sequence[float]]"
) -> list[float]:
    return [times[row.request_id][0] - row.arrival_s for row in requests if times[row.request_id]]


def _tpots(times: Iterable[Sequence[float]]) -> list[float]:
    return [(row[-1] - row[0]) / (len(row) - 1) for row in times if len(row) > 1]


def _p99(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.99)) if values else math.nan


def _error_ratio(ours: float, golden: float) -> float:
    if math.isnan(ours) and math.isnan(golden):
        return 0.0  # no request of the file has a second token
    return ours / golden - 1 if golden > 0 else math.inf
