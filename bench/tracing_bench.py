"""What traces cost the proxy face: processor time per P/D request without `tracing`, and at several sampling ratios.

Real parts on loopback, as in `proxy_bench`: `ballast gateway` under its default policy, one server that plays all
engines and answers at once, and a receiver that takes spans in and throws them away. All run in the same run and take
turns in each round; medians are shown, and ratios to the gateway without traces. The processor time is the whole
process's: the thread that encodes and sends spans is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Iterator

import uvloop

from bench.proxy_bench import CONNECTIONS, Subject, engines, gateway, small_requests
from tests.support.otlp import receiving

WITHOUT = "no traces"
RATIOS = (0.0, 0.05, 1.0)


@contextlib.contextmanager
def subjects(url: str) -> Iterator[list[Subject]]:
    """One gateway for each row."""
    with contextlib.ExitStack() as running:
        ports = running.enter_context(engines())
        found = [running.enter_context(gateway(WITHOUT, ports, "", rescue=True))]
        for ratio in RATIOS:
            traced = gateway(
                f"ratio {ratio:g}", ports, "", rescue=True, tracing={"endpoint": url, "sampleRatio": ratio}
            )
            found.append(running.enter_context(traced))
        yield found


async def measure(of: list[Subject], rounds: int, count: int) -> dict[str, float]:
    """Median processor time of a request, in ms, by row."""
    found: dict[str, list[float]] = {each.name: [] for each in of}
    for turn in range(-1, rounds):
        for each in of if turn % 2 else of[::-1]:
            figures = await small_requests(each.port, each.pid, count, CONNECTIONS, stream=True)
            if turn >= 0:  # the first one warms up
                found[each.name].append(figures.cpu_ms)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4_000, help="per round and row")
    options = parser.parse_args()
    with receiving() as receiver, subjects(receiver.url) as of:
        receiver.discards = True
        figures = uvloop.run(measure(of, options.rounds, options.requests))
    sys.stdout.write(f"{'':14}{'CPU ms/request':>16}{'to no traces':>14}\n")
    for name, cpu_ms in figures.items():
        sys.stdout.write(f"{name:14}{cpu_ms:16.3f}{cpu_ms / figures[WITHOUT]:14.2f}\n")
    sys.stdout.write(f"batches received: {receiver.batches}\n")


if __name__ == "__main__":
    main()
