"""What gateways of one process are called in logs and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path


def short_names(files: Iterable[str]) -> dict[str, str]:
    """The stem of each file, or all of its path where two have the same stem. Empty for one that is alone."""
    files = list(files)
    if len(files) < 2:
        return dict.fromkeys(files, "")
    stems = Counter(Path(file).stem for file in files)
    return {file: Path(file).stem if stems[Path(file).stem] == 1 else file for file in files}
