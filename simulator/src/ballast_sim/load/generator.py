"""The open loop: requests leave at the workload's times, or at these times `time_scale`."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ballast_sim.load.client import StreamClient, StreamOutcome
from ballast_sim.load.prompts import PromptKind, PromptMaker
from ballast_sim.load.report import LoadReport, RequestResult, build_report
from ballast_sim.settings import SettingError
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.workloads import WorkloadRequest

PROGRESS_EVERY_S = 0.5
MOST_STRETCHED = 1000.0
"""As of engine-sim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How to send. `timeout_s` is wall time for one request; `time_scale` 2 sends at half the speed."""

    url: str
    model: str
    time_scale: float = 1.0
    objective: Objective | None = None
    prompt_kind: PromptKind = "ids"
    seed: int = 0
    """Of the requests' names."""
    prompt_seed: int | None = None
    """Of the prompts' tokens. None: another one for each run, so that no cache holds them."""
    timeout_s: float = 600.0
    max_in_flight: int = 4096
    api_key: str | None = None
    name: str = "load"

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        for field in ("time_scale", "timeout_s", "max_in_flight"):
            if not 0 < getattr(self, field) < math.inf:
                raise SettingError(field, f"must be above 0 and finite, not {getattr(self, field)!r}")
        if self.time_scale > MOST_STRETCHED:
            raise SettingError("time_scale", f"must be {MOST_STRETCHED:g} or less, not {self.time_scale!r}")
        for field in ("seed", "prompt_seed"):
            if (value := getattr(self, field)) is not None and value < 0:
                raise SettingError(field, f"must be 0 or more, not {value}")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    elapsed_s: float
    total: int
    sent: int
    completed: int
    failed: int
    output_tokens: int

    @property
    def in_flight(self) -> int:
        """Requests that wait for tokens."""
        return self.sent - self.completed - self.failed


class _Run:
    def __init__(self, settings: LoadSettings, requests: Sequence[WorkloadRequest]) -> None:
        self.settings = settings
        self.requests = requests
        self.results: list[RequestResult] = []
        self.late_s: list[float] = []
        self.sent = self.failed = self.output_tokens = 0
        tbt_s = None if settings.objective is None else settings.objective.tbt_s
        late_after_s = math.inf if tbt_s is None else tbt_s * settings.time_scale
        self._client = StreamClient(settings.url, settings.api_key, late_after_s=late_after_s)
        prompt_seed = secrets.randbits(64) if settings.prompt_seed is None else settings.prompt_seed
        self._prompts = PromptMaker(settings.model, settings.prompt_kind, prompt_seed)
        self.start_s = time.monotonic()

    def progress(self) -> Progress:
        done = len(self.results)
        elapsed_s = time.monotonic() - self.start_s
        return Progress(elapsed_s, len(self.requests), self.sent, done - self.failed, self.failed, self.output_tokens)

    async def send_all(self) -> None:
        """Ends when every request has its answer; cancelled, it breaks off those under way, which are not counted.
        Raises ValueError for one that cannot be written."""
        self.start_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as sending:
                for index, request in enumerate(self.requests):
                    body = self._prompts.body(index, request)  # made ahead of its time, so that it leaves on time
                    due_s = self.start_s + request.arrival_s * self.settings.time_scale
                    delay_s = due_s - time.monotonic()
                    if delay_s > 0:
                        await asyncio.sleep(delay_s)
                    self.sent += 1
                    sending.create_task(self._send(index, request, body, due_s))
                    await asyncio.sleep(0)  # it leaves before the next body is made, also when all are late
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _send(self, index: int, request: WorkloadRequest, body: bytes, due_s: float) -> None:
        self.late_s.append(max(0.0, time.monotonic() - due_s) / self.settings.time_scale)
        request_id = f"{self.settings.name}-{self.settings.seed}-{index}"
        if self.sent - len(self.results) > self.settings.max_in_flight:
            outcome = StreamOutcome(error=f"more than {self.settings.max_in_flight} requests in flight: not sent")
        else:
            outcome = await self._client.completion(body, self.settings.timeout_s, request_id)
        self._record(request_id, request, outcome)

    def _record(self, request_id: str, request: WorkloadRequest, outcome: StreamOutcome) -> None:
        received = outcome.output_tokens if outcome.output_tokens is not None else outcome.chunks
        kind, reason = _failure(outcome, received, request.output_tokens)
        self.output_tokens += received
        self.failed += reason is not None
        self.results.append(
            RequestResult(
                request_id=request_id,
                arrival_s=request.arrival_s,
                input_tokens=request.input_tokens,
                prompt_tokens=outcome.prompt_tokens,
                asked_tokens=request.output_tokens,
                received_tokens=received,
                first_token_s=self._workload_s(outcome.first_token_s),
                last_token_s=self._workload_s(outcome.last_token_s),
                late_gaps=outcome.late_gaps,
                failed_s=None if reason is None else self._workload_s(time.monotonic()),
                status=outcome.status,
                reason=reason,
                kind=kind,
            )
        )

    def _workload_s(self, moment_s: float | None) -> float | None:
        return None if moment_s is None else (moment_s - self.start_s) / self.settings.time_scale

    async def end(self) -> None:
        """Close the connections."""
        self._client.close()
        await asyncio.sleep(0)


def _failure(outcome: StreamOutcome, received: int, asked: int) -> tuple[str | None, str | None]:
    """Kind and reason of a failure, or neither."""
    error = outcome.error
    if error is not None:
        if outcome.status >= 400:
            return f"status_{outcome.status}", error
        if error.startswith("cannot connect"):
            return "connect", error
        if error.startswith("no complete answer"):
            return "timeout", error
        if "not sent" in error:
            return "not_sent", error
        return "broken_stream", error
    if received != asked:
        return "short", f"got {received} tokens of {asked}"
    return None, None


async def run_load(
    settings: LoadSettings,
    requests: Sequence[WorkloadRequest],
    on_progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> LoadReport:
    """Send every request at its time, wait for the answers, and sum up.

    `stop` ends the run early: requests under way are broken off, and the report has `interrupted`. Raises ValueError
    for settings that cannot work; failures of servers are in the report.
    """
    run = _Run(settings, requests)
    sending = asyncio.ensure_future(run.send_all())
    stopping = asyncio.ensure_future(stop.wait()) if stop is not None else None
    try:
        while not sending.done() and not (stop is not None and stop.is_set()):
            waiting = {sending} | ({stopping} if stopping is not None else set())
            await asyncio.wait(waiting, timeout=PROGRESS_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if on_progress is not None:
                on_progress(run.progress())
        interrupted = not sending.done()
        if not interrupted:
            sending.result()
    finally:
        for task in filter(None, (sending, stopping)):
            task.cancel()
        await asyncio.gather(*filter(None, (sending, stopping)), return_exceptions=True)
        await run.end()
    return build_report(
        run.results,
        objective=settings.objective,
        time_scale=settings.time_scale,
        wall_s=time.monotonic() - run.start_s,
        late_s=run.late_s,
        interrupted=interrupted,
    )
