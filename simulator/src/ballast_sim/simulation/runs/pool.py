"""Runs spread over processes, with progress, and an orderly end when one is asked for.

Outcomes do not depend on how many processes there are: a run knows nothing of the others.
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
from typing import TypeAlias

from ballast_core import kernel
from ballast_sim.simulation.runs.experiment import Outcome, RunSpec, run

BEAT_EVERY_S = 0.1
"""Wall seconds between two reports of a run, and between two looks at whether to stop."""

OnProgress: TypeAlias = Callable[[int, float], None]
"""(place of the run, share of its requests that have ended); 1.0 exactly once, when its outcome is there."""


class WorkerDied(RuntimeError):
    """A worker process ended by itself, most likely for want of memory."""


def default_jobs() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    specs: Sequence[RunSpec], jobs: int, stop: threading.Event, on_progress: OnProgress | None = None
) -> list[Outcome | None]:
    """Every run's outcome, in the order of `specs`.

    Once `stop` is set, runs that are under way end early with `interrupted` figures; those in which no request has
    arrived yet are None.
    Raises what a run raises, and `WorkerDied`.
    """
    tell = on_progress or (lambda place, share: None)
    if min(jobs, len(specs)) <= 1:
        return _run_here(specs, stop, tell)
    return _run_in_processes(specs, min(jobs, len(specs)), stop, tell)


def _run_here(specs: Sequence[RunSpec], stop: threading.Event, tell: OnProgress) -> list[Outcome | None]:
    outcomes: list[Outcome | None] = []
    for place, spec in enumerate(specs):
        if stop.is_set():
            outcomes.append(None)
            continue
        outcome = run(spec, throttled(lambda share, place=place: tell(place, share), stop.is_set))  # type: ignore[misc]
        outcomes.append(outcome if outcome.figures["requests"] else None)
        tell(place, 1.0)
    return outcomes


def throttled(tell: Callable[[float], None], stopped: Callable[[], bool]) -> Callable[[float], bool]:
    """A beat that reports and looks every `BEAT_EVERY_S` of wall time."""
    due_s = 0.0

    def beat(share: float) -> bool:
        nonlocal due_s
        now_s = time.monotonic()
        if now_s < due_s:
            return False
        due_s = now_s + BEAT_EVERY_S
        tell(min(share, 0.999))
        return stopped()

    return beat


# --- in processes -----------------------------------------------------------------------------------------------------


class _Worker:
    """What a worker process knows; set once by `_start_worker`."""

    stop: Event
    progress: SimpleQueue[tuple[int, float]]


def _start_worker(stop: Event, progress: SimpleQueue[tuple[int, float]], compiled: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    threading.Thread(target=end_with_parent, daemon=True).start()
    _Worker.stop, _Worker.progress = stop, progress
    kernel.use(compiled)


def end_with_parent() -> None:
    """A killed parent sends nothing: its workers would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_there(place: int, spec: RunSpec) -> Outcome | None:
    if _Worker.stop.is_set():
        return None
    outcome = run(spec, throttled(lambda share: _Worker.progress.put((place, share)), _Worker.stop.is_set))
    return outcome if outcome.figures["requests"] else None


def _run_in_processes(
    specs: Sequence[RunSpec], jobs: int, stop: threading.Event, tell: OnProgress
) -> list[Outcome | None]:
    context = multiprocessing.get_context("spawn")
    stop_workers: Event = context.Event()
    progress: SimpleQueue[tuple[int, float]] = context.SimpleQueue()
    initargs = (stop_workers, progress, kernel.active() is not None)
    with ProcessPoolExecutor(jobs, context, _start_worker, initargs) as pool:
        futures: dict[Future[Outcome | None], int] = {
            pool.submit(_run_there, place, spec): place for place, spec in enumerate(specs)
        }
        try:
            _watch(futures, stop, stop_workers, progress, tell)
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise WorkerDied("a worker process died; run with fewer --jobs") from None
        finally:
            stop_workers.set()
            pool.shutdown(cancel_futures=True)


def _watch(
    futures: dict[Future[Outcome | None], int],
    stop: threading.Event,
    stop_workers: Event,
    progress: SimpleQueue[tuple[int, float]],
    tell: OnProgress,
) -> None:
    open_runs = set(futures)
    while open_runs:
        done, open_runs = wait(open_runs, BEAT_EVERY_S, FIRST_COMPLETED)
        if stop.is_set():
            stop_workers.set()
        while not progress.empty():
            tell(*progress.get())
        for future in done:
            if future.exception() is not None:
                return  # told by its result
            tell(futures[future], 1.0)
