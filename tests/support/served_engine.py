"""`ballast engine-sim serve` as a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from ballast_cli.demo.ports import free_port

CLI = [sys.executable, "-m", "ballast_cli"]


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A served engine-sim process and its URL; ended by pid."""
    port = free_port()
    command = [*CLI, "engine-sim", "serve", "m", "--host", "127.0.0.1", "--port", str(port), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "BALLAST_PROFILE": ""})
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline_s, "engine-sim did not start"
                time.sleep(0.05)
        yield process, url
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
