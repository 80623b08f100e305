"""What a reader takes from files: samples, facts about the engine, and notes on what was left out."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ballast_sim.fitting.errors import FitInputError
from ballast_sim.fitting.samples import Sample
from ballast_sim.plain_files import require_plain

LARGEST_NUMBER = 1e12  # of tokens, milliseconds, seconds: beyond, a file is broken
SHORTEST_MS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Samples in the order of time.

    `facts`: fields of a HardwareProfile that the files state (kv_tokens, block_size, ...). `notes`: what a reader of
    the result should know.
    """

    samples: Sequence[Sample]
    facts: dict[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


def read_text(path: Path) -> str:
    """The whole file, plain or gzip, without a byte order mark. Raises `FitInputError`."""
    try:
        require_plain(path)
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig") as lines:
                return lines.read()
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise FitInputError(f"{path}: is not UTF-8 text") from None
    except (OSError, EOFError, zlib.error) as error:
        raise FitInputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
