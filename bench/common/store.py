"""Results on disk, each under the digests of what it depends on: its description and the code that made it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Code:
    """Digests of the code that a result comes from: of its placements, and of all else."""

    placement: str
    common: str


@dataclass(frozen=True, slots=True)
class Store:
    """A folder with a file for each result, named by the digests of what it depends on."""

    folder: Path
    trust_common: bool = False
    """Whether results of other common code count, too: for changes that are known to alter no figure."""

    def get(self, description: Mapping[str, object], code: Code) -> tuple[dict[str, Any], Code] | None:
        """A result and the code that it comes from; None where there is none that counts."""
        stem = f"{digest_of(description)}-{code.placement}"
        found = [self.folder / f"{stem}-{code.common}.json"]
        if self.trust_common:
            found += sorted(self.folder.glob(f"{stem}-*.json"), key=lambda path: -path.stat().st_mtime)
        for path in found:
            try:
                result = json.loads(path.read_text(encoding="utf-8"))["result"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            return dict(result), Code(code.placement, path.stem.rpartition("-")[2])
        return None

    def put(self, description: Mapping[str, object], code: Code, result: Mapping[str, object]) -> None:
        """Replace the file atomically, so that a reader never finds half of it."""
        path = self.folder / f"{digest_of(description)}-{code.placement}-{code.common}.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as part:
            json.dump({"of": description, "result": dict(result)}, part)
        Path(part.name).replace(path)


def digest_of(description: Mapping[str, object]) -> str:
    """Of a description as JSON, whatever the order of its keys. Raises ValueError for a number that JSON lacks."""
    text = json.dumps(description, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def cache_folder(name: str, checkout: Path) -> Path:
    """`$XDG_CACHE_HOME/ballast/NAME`; without that, `build/NAME` in the checkout."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base) / "ballast" / name if base.startswith("/") else checkout / "build" / name


def rounded(value: float) -> float:
    """To seven significant digits, as recorded."""
    return float(f"{value:.7g}")
