"""Records of processes that survive their writer, and signals that can only hit the process that was recorded."""

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Self

PROC = Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process named beyond doubt: its id, its start (clock ticks since boot) and the boot it belongs to."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> Self | None:
        """The record of a living process, or None when there is none with this id."""
        ticks = start_ticks(pid, proc)
        return None if ticks is None else cls(pid, ticks, boot_id(proc))

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """A record from disk, or None when there is no complete one."""
        try:
            return cls(**json.loads(path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def save(self, path: Path) -> None:
        """Write at once or not at all: a reader never sees half a record."""
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(dataclasses.asdict(self)))
        scratch.replace(path)

    def alive(self, proc: Path = PROC) -> bool:
        """Whether this very process runs; a later one that got the same id does not count, nor does a zombie."""
        return self.boot_id == boot_id(proc) and self.start_ticks == start_ticks(self.pid, proc)


def _stat_fields(pid: int, proc: Path) -> list[str] | None:
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold spaces and parentheses itself.
    return text.rsplit(")", 1)[1].split()


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """Start time of a living process in clock ticks since boot (proc(5), stat field 22); None when it is gone."""
    fields = _stat_fields(pid, proc)
    if fields is None or fields[0] in {"Z", "X"}:
        return None
    return int(fields[19])


def boot_id(proc: Path = PROC) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def command_line(pid: int, proc: Path = PROC) -> list[str]:
    """Arguments of a process; empty when it is gone or a kernel thread."""
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [part.decode(errors="replace") for part in raw.split(b"\0")[:-1]]


def running_pids(proc: Path = PROC) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]


def pids_with_arguments(wanted: tuple[str, ...], proc: Path = PROC) -> list[int]:
    """Processes whose last arguments are exactly `wanted`."""
    return [pid for pid in running_pids(proc) if tuple(command_line(pid, proc)[-len(wanted) :]) == wanted]


def pids_in_namespace(kind: str, inode: int, proc: Path = PROC) -> list[int]:
    """Processes in the namespace with this inode number (`kind` is net, pid, mnt, ...)."""
    found = []
    for pid in running_pids(proc):
        try:
            if (proc / str(pid) / "ns" / kind).stat().st_ino == inode:
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def kill_recorded(record: ProcessRecord, timeout_s: float) -> bool:
    """SIGKILL the recorded process and wait until it is gone; True when it is.

    The signal goes through a pidfd that is checked against the record after it was opened: it hits no other process.
    """
    try:
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return True
    try:
        if not record.alive():
            return True
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)
    deadline = time.monotonic() + timeout_s
    while record.alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
