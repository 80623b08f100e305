"""Run a command in a cluster of its own: start it, load images, run inside, and always stop it.

A session that is killed outright cannot clean up: the next one finds that nobody holds its cluster's lock, and does.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed import images, lifecycle
from testbed.context import Say
from testbed.errors import TestbedError
from testbed.packages import find_program
from testbed.spec import NodeSpec, state_root

_PREFIX = "e2e-"


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _clean_abandoned(say: Say) -> None:
    for path in state_root().glob(f"{_PREFIX}*.session"):
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # that session runs
            say(f"==> cleaning up cluster {path.stem} of a session that was killed")
            lifecycle.down(path.stem, say)
            path.unlink(missing_ok=True)


def run(nodes: tuple[NodeSpec, ...], image_names: Sequence[str], argv: Sequence[str], say: Say) -> int:
    """Exit status of the command, whose output stays last. Raises TestbedError when the cluster does not start."""
    if not argv:
        raise TestbedError("session: give a command after --")
    name = f"{_PREFIX}{os.getpid()}"
    _clean_abandoned(say)
    with _held(state_root() / f"{name}.session"):
        archives = images.build_archives(list(image_names), say) if image_names else {}
        try:
            entrance = lifecycle.up(name, nodes, say)
            if archives:
                images.load(name, archives, say)
            environment = {**os.environ, **entrance.environment(), "BALLAST_TESTBED_NAME": name}
            # When this process is killed outright, the kernel ends the command.
            tied = [find_program("setpriv"), "--pdeathsig", "TERM", "--"]
            return subprocess.run([*tied, *entrance.prefix, *argv], env=environment, check=False).returncode
        finally:
            sys.stdout.flush()
            lifecycle.down(name, lambda _: None)
