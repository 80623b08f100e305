"""A file of lines beside the requests: a full disk costs lines of it, and nothing else."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from types import TracebackType
from typing import Self

_log = logging.getLogger(__name__)


class LineFile:
    """Appends lines, each with one system call where the disk has room. It is a context manager.

    A line that cannot be written is lost. The log has when that begins and when lines are written again.
    """

    def __init__(self, path: Path) -> None:
        """Raises `OSError`."""
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._whole = True
        """What was written ends with a line's end."""
        self._lost = 0
        """Lines, since the last one that was written."""

    def write(self, line: str) -> None:
        """Add one line, with its end. Raises no `OSError`."""
        try:
            self._append(line.encode())
        except OSError as error:
            if not self._lost:
                extra = {"file": str(self._path), "problem": error.strerror or str(error)}
                _log.error("lines of a file are lost: it cannot be written", extra=extra)
            self._lost += 1
        else:
            if self._lost:
                _log.warning("a file is written again", extra={"file": str(self._path), "lost_lines": self._lost})
                self._lost = 0

    def _append(self, line: bytes) -> None:
        """A line of which only a part could be written is ended before the next one."""
        rest = line if self._whole else b"\n" + line
        while rest:
            written = self._file.write(rest)
            if not written:
                raise BlockingIOError(errno.EAGAIN, "it takes no more for now")
            self._whole = rest[:written].endswith(b"\n")
            rest = rest[written:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
