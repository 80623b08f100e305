"""Programs and files that only the test bed brings: when it is built CI runs their tests again, and none may lack."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip; with TESTBED_BUILT set, which CI does, fail."""
    if os.environ.get("TESTBED_BUILT"):
        pytest.fail(reason)
    pytest.skip(reason)


def helm() -> str:
    """The path of Helm, the test bed's own where the machine has none."""
    built = sorted(Path("~/.cache/ballast/testbed").expanduser().glob("*/bin/helm"))
    found = shutil.which("helm") or next(map(str, built), None)
    if found is None:
        missing("no helm: `make testbed-build` builds it")
    return found
