"""The program that an engine's pod runs before its end: it returns when the pod is empty, or its time is over.

Its text is mounted into engine images, which are not ours: the standard library of any Python 3.8 or later, no import
of anything else. `specs.hold` makes the container's hook of it.

A pod is empty when each gateway has seen that it ends and has nothing there, and the engine says that nothing runs,
waits, or keeps KV for somebody who is still to read it. An engine that does not answer, or gets nothing done, is not
waited for. One that no gateway knows gets as long as gateways usually need to notice.

The kernel drops a signal that the first process of a container does not handle, so an engine that has only begun to
start would not be told that it ends, and keep its GPUs for the whole grace period: it is given the time to listen.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035 -- for the Pythons of engine images

NOTICE_S = 5.0
"""In which gateways learn that the pod ends; also the least time where none of them answers."""
UNNOTICED_S = 15.0
"""After this a gateway that has not seen that the pod ends is taken at its other word."""
UNREAD_S = 30.0
"""How long KV is kept for readers: vLLM's lease."""
STUCK_S = 60.0
"""Without one more token an engine that claims to work is not waited for."""
LISTENS_S = 120.0
"""In which a container's first process begins to handle SIGTERM, if it ever does."""
POLL_S = 1.0
ANSWER_S = 2.0
MISSES = 3
"""Answers in a row that an engine owes before it counts as dead."""

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str) -> Optional[bytes]:  # noqa: UP045
    """The body of a 200, else None; also where it breaks off, as of a gateway that ends itself."""
    try:
        with _OPENER.open(url, timeout=ANSWER_S) as answer:
            return answer.read() if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None


def gateways(name: str, port: int) -> List[str]:  # noqa: UP006
    """Addresses of the gateways' pods by their headless Service; none where it has no name."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    hosts = sorted({str(each[4][0]) for each in found})
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]


def told(addresses: List[str]) -> List[Dict[str, Any]]:  # noqa: UP006
    """What those gateways that answer hold at this pod."""
    bodies = [get(f"http://{address}/ballast/v1/hold") for address in addresses]
    return [json.loads(body) for body in bodies if body is not None]


class Engine:
    """What the engine of this pod says of itself."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.misses = 0
        self.tokens = -1.0
        self.moved_s = self.idle_s = time.monotonic()

    def busy(self) -> Optional[bool]:  # noqa: UP045
        """Whether it has something to do; None where it is dead, or as good as that."""
        now_s = time.monotonic()
        page = get(f"{self.url}/metrics") if get(f"{self.url}/health") is not None else None
        self.misses = 0 if page is not None else self.misses + 1
        if page is None:
            return None if self.misses >= MISSES else True
        work, unread, tokens = read_metrics(page.decode("utf-8", "replace"))
        if tokens != self.tokens or not work:
            self.tokens, self.moved_s = tokens, now_s
        if work:
            self.idle_s = now_s
            return None if now_s - self.moved_s >= STUCK_S else True
        return unread and now_s - self.idle_s < UNREAD_S


def read_metrics(page: str) -> Tuple[float, bool, float]:  # noqa: UP006
    """Requests that run or wait, whether KV is kept, and tokens so far, from vLLM's metrics."""
    sums = dict.fromkeys(
        (
            "num_requests_running",
            "num_requests_waiting",
            "kv_cache_usage_perc",
            "generation_tokens_total",
            "prompt_tokens_total",
        ),
        0.0,
    )
    for line in page.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name.startswith("vllm:") and name[5:] in sums:
            sums[name[5:]] += float(line.rsplit(" ", 1)[-1])
    work = sums["num_requests_running"] + sums["num_requests_waiting"]
    return work, sums["kv_cache_usage_perc"] > 0, sums["generation_tokens_total"] + sums["prompt_tokens_total"]


def hold(engine: Engine, name: str, port: int, most_s: float) -> str:
    """Wait; why it is over."""
    began_s = time.monotonic()
    calm = 0
    while True:
        age_s = time.monotonic() - began_s
        if age_s >= most_s:
            return "its time is over"
        said, busy = told(gateways(name, port)), engine.busy()
        noticed = bool(said) and all(each["draining"] for each in said)
        noticed = noticed or age_s >= (UNNOTICED_S if said else NOTICE_S)
        if busy is None and age_s >= NOTICE_S:
            return "the engine does not answer, or gets nothing done"
        empty = noticed and not busy and not any(each["requests"] for each in said)
        calm = calm + 1 if empty else 0
        if calm >= 2:  # a request may be on its way from one gateway's word to the engine's
            return "it is empty"
        time.sleep(POLL_S)


def listens(process: int) -> bool:
    """Whether a process handles SIGTERM, or cannot be looked at."""
    try:
        with open(f"/proc/{process}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return True
    return bool(int(fields.get("SigCgt", "-1"), 16) >> (signal.SIGTERM - 1) & 1)


def until_it_listens(process: int, most_s: float) -> None:
    """Wait until a process handles SIGTERM; no longer than one takes that ever does."""
    end_s = time.monotonic() + min(most_s, LISTENS_S)
    while not listens(process) and time.monotonic() < end_s:
        time.sleep(POLL_S / 5)


def main() -> None:
    """Arguments: see `--help`. What is said is for those who run it by hand: kubelets drop a hook's output."""
    parser = argparse.ArgumentParser(description="Return when this engine pod is empty.")
    parser.add_argument("--host", required=True, help="address of the engine's API")
    parser.add_argument("--port", required=True, type=int, help="its port")
    parser.add_argument("--gateways", required=True, metavar="NAME:PORT", help="headless Service of the gateways")
    parser.add_argument("--most", type=float, required=True, metavar="S", help="the longest wait in seconds")
    options = parser.parse_args()
    name, _, port = options.gateways.rpartition(":")
    host = f"[{options.host}]" if ":" in options.host else options.host
    began_s = time.monotonic()
    print(hold(Engine(f"http://{host}:{options.port}"), name, int(port), options.most))  # noqa: T201
    until_it_listens(1, options.most - (time.monotonic() - began_s))


if __name__ == "__main__":
    main()
