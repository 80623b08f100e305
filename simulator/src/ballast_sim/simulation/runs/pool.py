"""Runs spread over processes, with progress, and an orderly end when one is asked for.

Outcomes do not depend on the number of processes: runs share no state.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from typing import Self, TypeAlias

from ballast_core import kernel
from ballast_sim.simulation.runs.experiment import Outcome, RunSpec, run

BEAT_EVERY_S = 0.1
"""Wall seconds between two reports of a run, and between two checks of whether to stop."""

OnProgress: TypeAlias = Callable[[int, float], None]
"""Called with (index of the run, share of its requests that have ended); with 1.0 exactly once, when it is done."""


class WorkerDied(RuntimeError):
    """A worker process ended by itself, most likely for want of memory."""


def default_jobs() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """`jobs` worker processes for several batches of runs; with one job the runs happen in this process."""

    def __init__(self, jobs: int) -> None:
        """Starts nothing: processes start with the first runs that they are needed for."""
        self._jobs = jobs
        self._processes: _Processes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the processes; runs under way end early."""
        if self._processes is not None:
            self._processes.end()

    def run(
        self, specs: Sequence[RunSpec], stop: threading.Event, on_progress: OnProgress | None = None
    ) -> list[Outcome | None]:
        """Every run's outcome, in the order of `specs`, which is the order in which they start.

        Once `stop` is set, runs that are under way end early with `interrupted` figures; those in which no request has
        arrived yet are None, and so is all that comes later.
        Raises what a run raises, and `WorkerDied`.
        """
        report = on_progress or (lambda index, share: None)
        if self._jobs <= 1 or not specs:
            return _run_here(specs, stop, report)
        if self._processes is None:
            self._processes = _Processes(self._jobs)
        return self._processes.run(specs, stop, report)


def run_all(
    specs: Sequence[RunSpec], jobs: int, stop: threading.Event, on_progress: OnProgress | None = None
) -> list[Outcome | None]:
    """One batch of `Pool.run`."""
    with Pool(min(jobs, len(specs))) as pool:
        return pool.run(specs, stop, on_progress)


def _run_here(specs: Sequence[RunSpec], stop: threading.Event, report: OnProgress) -> list[Outcome | None]:
    outcomes: list[Outcome | None] = []
    for index, spec in enumerate(specs):
        if stop.is_set():
            outcomes.append(None)
            continue
        outcome = run(spec, throttled(lambda share, index=index: report(index, share), stop.is_set))  # type: ignore[misc]
        outcomes.append(outcome if outcome.figures["requests"] else None)
        report(index, 1.0)
    return outcomes


def throttled(report: Callable[[float], None], stopped: Callable[[], bool]) -> Callable[[float], bool]:
    """A beat that reports progress, and reads `stopped`, at most once per `BEAT_EVERY_S` of wall time."""
    due_s = 0.0

    def beat(share: float) -> bool:
        nonlocal due_s
        now_s = time.monotonic()
        if now_s < due_s:
            return False
        due_s = now_s + BEAT_EVERY_S
        report(min(share, 0.999))
        return stopped()

    return beat


# --- in processes -----------------------------------------------------------------------------------------------------


class _Worker:
    """The state of a worker process; set once by `_start_worker`."""

    stop: Event
    progress: SimpleQueue[tuple[int, float]]


def _start_worker(stop: Event, progress: SimpleQueue[tuple[int, float]], compiled: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sets `stop`
    threading.Thread(target=end_with_parent, daemon=True).start()
    _Worker.stop, _Worker.progress = stop, progress
    kernel.use(compiled)


def end_with_parent() -> None:
    """End this worker when its parent has died. A killed parent sends nothing, and the worker would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_there(index: int, spec: RunSpec) -> Outcome | None:
    if _Worker.stop.is_set():
        return None
    outcome = run(spec, throttled(lambda share: _Worker.progress.put((index, share)), _Worker.stop.is_set))
    return outcome if outcome.figures["requests"] else None


class _Processes:
    def __init__(self, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop: Event = context.Event()
        self._progress: SimpleQueue[tuple[int, float]] = context.SimpleQueue()
        initargs = (self._stop, self._progress, kernel.active() is not None)
        self._executor = ProcessPoolExecutor(jobs, context, _start_worker, initargs)

    def run(self, specs: Sequence[RunSpec], stop: threading.Event, report: OnProgress) -> list[Outcome | None]:
        try:
            futures: dict[Future[Outcome | None], int] = {
                self._executor.submit(_run_there, index, spec): index for index, spec in enumerate(specs)
            }
            _watch(futures, stop, self._stop, self._progress, report)
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise WorkerDied("a worker process died; run with fewer --jobs") from None

    def end(self) -> None:
        self._stop.set()
        self._executor.shutdown(cancel_futures=True)


def _watch(
    futures: dict[Future[Outcome | None], int],
    stop: threading.Event,
    stop_workers: Event,
    progress: SimpleQueue[tuple[int, float]],
    report: OnProgress,
) -> None:
    open_runs = set(futures)
    while open_runs:
        done, open_runs = wait(open_runs, BEAT_EVERY_S, FIRST_COMPLETED)
        if stop.is_set():
            stop_workers.set()
        while not progress.empty():
            report(*progress.get())
        for future in done:
            if future.exception() is not None:
                return  # `result` raises it
            report(futures[future], 1.0)
