"""The program that keeps an engine's pod until it is empty, before real sockets; its clock is faster here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ballast_api.load_report import HOLD
from ballast_operator import engine_hold
from ballast_operator.specs.hold import hold_program


class Pod:
    """An engine and a gateway, on one port."""

    def __init__(self) -> None:
        self.requests, self.draining, self.gateway = 0, True, True
        self.running, self.waiting, self.kept, self.tokens = 0.0, 0.0, 0.0, 7.0
        self.alive, self.works, self.whole = True, True, True
        pod = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = pod.answer(self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(body) + (0 if pod.whole else 9)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.port = int(self.server.server_address[1])
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str) -> tuple[int, bytes]:
        if path == HOLD:
            told = {"draining": self.draining, "requests": self.requests}
            return (200, json.dumps(told).encode()) if self.gateway else (503, b"")
        if path == "/health":
            return (200 if self.alive else 503), b""
        self.tokens += self.works
        return 200, (
            "# HELP vllm:num_requests_running x\n"
            f'vllm:num_requests_running{{engine="0"}} {self.running}\n'
            f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}\n'
            f'vllm:kv_cache_usage_perc{{engine="0"}} {self.kept}\n'
            f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}\n'
        ).encode()


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    for name, seconds in {
        "NOTICE_S": 0.3, "UNNOTICED_S": 0.6, "UNREAD_S": 0.5, "STUCK_S": 0.5, "POLL_S": 0.02, "ANSWER_S": 1.0
    }.items():  # fmt: skip
        monkeypatch.setattr(engine_hold, name, seconds)
    made = Pod()
    yield made
    made.server.shutdown()
    made.server.server_close()


def held(pod: Pod, *, most_s: float = 3.0, then: Callable[[], None] = lambda: None) -> tuple[str, float]:
    """Why it was over and after how long; `then` happens after 0.15 s."""
    began_s = time.monotonic()
    threading.Timer(0.15, then).start()
    why = engine_hold.hold(engine_hold.Engine(f"http://127.0.0.1:{pod.port}"), "127.0.0.1", pod.port, most_s)
    return why, time.monotonic() - began_s


EMPTY, OVER, DEAD = "it is empty", "its time is over", "the engine does not answer, or gets nothing done"


def test_an_empty_pod_goes_at_once(pod: Pod) -> None:
    assert held(pod)[0] == EMPTY


@pytest.mark.parametrize("what", ["requests", "running", "waiting", "kept"])
def test_it_waits_for_gateways_and_for_the_engine(pod: Pod, what: str) -> None:
    """For each by itself; for KV that nobody has read as long as an engine keeps it."""
    setattr(pod, what, 1)
    why, took_s = held(pod, then=lambda: setattr(pod, what, 0))
    assert (why, took_s > 0.15) == (EMPTY, True)


def test_it_waits_until_gateways_have_noticed(pod: Pod) -> None:
    """They may send something as long as they have not."""
    pod.draining = False
    why, took_s = held(pod, then=lambda: setattr(pod, "draining", True))
    assert (why, took_s > 0.15) == (EMPTY, True)
    pod.draining = False
    why, took_s = held(pod)
    assert (why, took_s > 0.6) == (EMPTY, True)  # one that never does


@pytest.mark.parametrize("what", ["requests", "running"])
def test_its_time_is_bounded(pod: Pod, what: str) -> None:
    setattr(pod, what, 1)
    why, took_s = held(pod, most_s=0.8)
    assert (why, 0.8 <= took_s < 2) == (OVER, True)


def test_kept_kv_is_not_waited_for_longer_than_it_is_kept(pod: Pod) -> None:
    pod.kept = 1
    why, took_s = held(pod)
    assert (why, took_s > 0.5) == (EMPTY, True)


def test_without_gateways_the_engine_is_asked_alone(pod: Pod) -> None:
    """And they get the time that they would need to notice."""
    pod.gateway, pod.running = False, 1
    why, took_s = held(pod, then=lambda: setattr(pod, "running", 0))
    assert (why, took_s > 0.3) == (EMPTY, True)


def test_an_answer_that_breaks_off_is_none(pod: Pod) -> None:
    """A gateway or an engine that ends itself: the next answer counts."""
    pod.running, pod.whole = 1, False
    threading.Timer(0.05, setattr, [pod, "whole", True]).start()
    why, took_s = held(pod, then=lambda: setattr(pod, "running", 0))
    assert (why, took_s > 0.15) == (EMPTY, True)


@pytest.mark.parametrize("what", ["alive", "works"])
def test_an_engine_that_is_dead_or_stuck_is_not_waited_for(pod: Pod, what: str) -> None:
    """Its liveness probe runs the same hook before it starts the engine anew."""
    pod.requests = pod.running = 1
    setattr(pod, what, False)
    why, took_s = held(pod)
    assert (why, took_s > 0.3) == (DEAD, True)


LISTENER = """
import signal, sys, time
print("up", flush=True)
sys.stdin.readline()
signal.signal(signal.SIGTERM, lambda *_: None)
print("listens", flush=True)
time.sleep(60)
"""


def test_a_process_that_does_not_handle_sigterm_yet_is_given_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first process of a container it would not be told, and keep its GPUs for its whole grace period."""
    monkeypatch.setattr(engine_hold, "POLL_S", 0.02)
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert not engine_hold.listens(process.pid)
        began_s = time.monotonic()
        engine_hold.until_it_listens(process.pid, 0.3)
        assert time.monotonic() - began_s >= 0.3
        threading.Timer(0.2, process.stdin.write, ["\n"]).start()
        threading.Timer(0.25, process.stdin.flush).start()
        engine_hold.until_it_listens(process.pid, 60)
        assert engine_hold.listens(process.pid)
        process.kill()
    assert engine_hold.listens(process.pid), "one that has gone is not waited for"


@pytest.mark.rotating(4)
def test_it_runs_where_only_a_python_is(pod: Pod, tmp_path: Path) -> None:
    """As its container's hook has it: isolated, from a file."""
    file = tmp_path / "hold.py"
    file.write_text(hold_program())
    command = ["python3", "-I", "-S", str(file), "--host", "127.0.0.1", "--port", str(pod.port)]
    options = ["--gateways", f"localhost:{pod.port}", "--most", "8"]
    said = subprocess.run([*command, *options], capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout.strip() == EMPTY
