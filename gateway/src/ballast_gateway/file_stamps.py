"""Whether a file has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int, int, int] | None
"""Differs when the file does; None: it cannot be looked at."""


def stamp(file: Path) -> Stamp:
    """With the inode, because a mounted Secret changes by a new link, and the time of the last change of rights: one
    that could not be read is mended by these."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
