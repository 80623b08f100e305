"""The quickstart's manifests: package data of a wheel, the repository's `manifests/quickstart` in a checkout."""

from importlib.resources import files
from pathlib import Path

import ballast_cli

_IN_CHECKOUT = Path("manifests", "quickstart")


def quickstart_folder() -> Path:
    """The folder with the manifests. pyproject.toml puts the repository's into the wheel; there is no second copy."""
    packaged = Path(str(files(ballast_cli) / "demo" / "manifests"))
    return packaged if packaged.is_dir() else Path(ballast_cli.__file__).parents[3] / _IN_CHECKOUT
