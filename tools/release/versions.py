"""One version, in pyproject.toml: `python -m release.versions [--check] [--tag vX.Y.Z]`.

Writes it into the chart and CITATION.cff, or with `--check` names the files that say something else. With `--tag`, the
tag and the newest dated heading of CHANGELOG.md must say it, too.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).resolve().parents[2]
FOLLOWERS: Final = {
    "charts/ballast/Chart.yaml": (r"(?m)^version: (.+)$", r"(?m)^appVersion: (.+)$"),
    "CITATION.cff": (r"(?m)^version: (.+)$",),
}
"""File to the places that repeat the version."""
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_DATED = re.compile(r"(?m)^## \[([^\]]+)\] - \d{4}-\d{2}-\d{2}$")


def version_of(root: Path = REPOSITORY) -> str:
    """The version in pyproject.toml. Raises `ValueError` if it is not X.Y.Z: packages and charts differ on others."""
    found = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    if not _RELEASE.fullmatch(found):
        raise ValueError(f"pyproject.toml: version: {found!r} is not X.Y.Z")
    return found


def brought_up(root: Path = REPOSITORY) -> dict[str, str]:
    """File to its text with the version of pyproject.toml."""
    version, texts = version_of(root), {}
    for name, places in FOLLOWERS.items():
        text = (root / name).read_text()
        for place in places:
            if len(re.findall(place, text)) != 1:
                raise ValueError(f"{name}: must say its version once, as {place}")
            text = re.sub(place, lambda match: match[0].replace(match[1], version), text)
        texts[name] = text
    return texts


def problems(root: Path = REPOSITORY, tag: str | None = None) -> list[str]:
    """What disagrees, each with the fix."""
    version = version_of(root)
    found = [
        f"{name}: its version is not {version}; run `make generate`"
        for name, text in brought_up(root).items()
        if (root / name).read_text() != text
    ]
    if tag is not None:
        if tag != f"v{version}":
            found.append(f"tag {tag}: pyproject.toml says {version}; tag v{version}, or change the version first")
        dated = _DATED.findall((root / "CHANGELOG.md").read_text())
        if dated[:1] != [version]:
            newest = dated[0] if dated else "none"
            found.append(f"CHANGELOG.md: the newest dated heading is {newest}; write `## [{version}] - YYYY-MM-DD`")
    return found


def notes(root: Path = REPOSITORY) -> str:
    """What CHANGELOG.md says of this version; what is unreleased, if it is not dated yet."""
    text = (root / "CHANGELOG.md").read_text()
    sections = re.split(r"(?m)^## ", text)[1:]
    wanted = next((each for each in sections if each.startswith(f"[{version_of(root)}] - ")), None)
    return (sections[0] if wanted is None else wanted).partition("\n")[2].strip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="Write nothing; status 1 if a file disagrees.")
    parser.add_argument("--tag", help="The tag of the release, such as v0.2.0; implies --check.")
    given = parser.parse_args(arguments)
    try:
        if not given.check and given.tag is None:
            for name, text in brought_up().items():
                (REPOSITORY / name).write_text(text)
        found = problems(tag=given.tag)
    except ValueError as error:
        found = [str(error)]
    for each in found:
        sys.stderr.write(f"{each}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
