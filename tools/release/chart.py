"""The chart as it is published: its default image is the one of the same release."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml


def package(chart: Path, target: Path, *, helm: str, repository: str, version: str) -> Path:
    """`ballast-VERSION.tgz` in `target`, linted and rendered. Raises `ValueError` in words."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / chart.name
        shutil.copytree(chart, copy)
        values = copy / "values.yaml"
        values.write_text(with_image(values.read_text(), repository))
        _run(helm, "lint", "--quiet", str(copy))
        _run(helm, "package", str(copy), "--version", version, "--app-version", version, "--destination", str(target))
    packed = target / f"{chart.name}-{version}.tgz"
    wanted = f"{repository}:{version}"
    rendered = _run(helm, "template", "check", str(packed), "--kube-version", "1.30.0")
    if wanted not in rendered:
        raise ValueError(f"{packed.name}: does not install {wanted}")
    return packed


def with_image(values: str, repository: str) -> str:
    """values.yaml with this image by default, of the chart's appVersion. Comments stay."""
    changed = re.sub(r"(?m)^  repository: .*$", f"  repository: {repository}", values, count=1)
    changed = re.sub(r"(?m)^  tag: .*$", "  tag: ''", changed, count=1)
    image = yaml.safe_load(changed)["image"]
    if (image["repository"], image["tag"]) != (repository, ""):
        raise ValueError("values.yaml: image.repository and image.tag are not where they were")
    return changed


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{' '.join(command[:2])}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
