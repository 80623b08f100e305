"""Jobs on all cores, one process each, until there are none, the time is up, or Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import Any, TypeAlias, TypeVar

from ballast_sim.simulation.runs.pool import end_with_parent

INTERRUPTED = 130

Job: TypeAlias = Any
"""Anything that can be pickled and is not None."""

Result = TypeVar("Result")


def compute(
    take: Callable[[], Job],
    carry_out: Callable[[Job], Result],
    finished: Callable[[Job, Result], None],
    failed: Callable[[Job, Exception], None],
    *,
    processes: int,
    budget_s: float = float("inf"),
) -> int:
    """Run the jobs that `take` returns in worker processes; `finished` and `failed` are called here, one at a time.

    `take` returns None where no job is left to start; it is called again after every job, so that it may depend on
    results. Nothing is started after `budget_s`. A worker that dies takes the jobs under way with it, which have failed
    then; others go on in new workers. Returns the exit status: 1 where a job failed, 130 after Ctrl-C.
    """
    started_s = time.monotonic()
    status = 0
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one process for each core already
    pool = _pool(processes)
    under_way: dict[Future[Result], Job] = {}
    try:
        while True:
            while len(under_way) < processes and time.monotonic() - started_s < budget_s:
                job = take()
                if job is None:
                    break
                under_way[pool.submit(carry_out, job)] = job
            if not under_way:
                return status
            broken = False
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                job = under_way.pop(future)
                try:
                    result = future.result()
                except Exception as error:
                    status = 1
                    broken = broken or isinstance(error, BrokenProcessPool)
                    failed(job, error)
                else:
                    finished(job, result)
            if broken:
                for job in under_way.values():
                    failed(job, BrokenProcessPool("another worker died"))
                under_way.clear()
                pool.shutdown(wait=False)
                pool = _pool(processes)
    except KeyboardInterrupt:
        for worker in active_children():
            worker.terminate()
        print("interrupted; what was finished is kept", flush=True)
        return INTERRUPTED
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"), _start_worker)


def _start_worker() -> None:
    """A worker ends at once at an interrupt, and with its parent, however that ended."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()
