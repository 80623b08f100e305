"""All that a release builds, built and checked, and nothing published: `python -m release.dry_run`.

Versions agree; sdist and wheel pass `twine check`; the chart is packed with the image of its release; the SBOM lists
what the image holds; the image has its labels and starts. Everything lies in build/release. The workflow of a tag runs
the same with `--tag` and `--builder docker`, and pushes what lies there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from release import chart, versions
from release.versions import REPOSITORY
from testbed import build, context, images
from testbed.errors import TestbedError

TARGET = REPOSITORY / "build" / "release"
TOOLS = REPOSITORY / ".tools" / "release" / "bin"
ROOTS = {"kopf", "kubernetes", "numpy", "pydantic", "xds-protos"}
"""An SBOM without these is not of our image."""


def _run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    words = list(map(str, command))
    done = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{Path(command[0]).name} {command[1]} failed:\n{(done.stdout + done.stderr).strip()[-3000:]}")
    return done.stdout


def python_packages(version: str) -> str:
    """sdist and wheel, the wheel from the sdist, as PyPI takes them. Returns what there is."""
    made, target = TARGET / "made", TARGET / "dist"
    _run(Path(sys.prefix) / "bin" / "uv", "build", "--quiet", "--out-dir", made)
    (wheel,), (source,) = made.glob("*.whl"), made.glob("*.tar.gz")
    target.mkdir()
    shutil.move(source, target)
    # PyPI takes no linux_x86_64: the tag must name the oldest C library that the compiled kernel runs with.
    environment = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"}
    _run(TOOLS / "auditwheel", "repair", "--wheel-dir", target, wheel, environment=environment)
    shutil.rmtree(made)
    built = sorted(target.iterdir())
    if len(built) != 2 or not all(version in each.name for each in built) or "manylinux" not in built[0].name:
        raise ValueError(f"expected a wheel and an sdist of {version}, not {[each.name for each in built]}")
    _run(TOOLS / "twine", "check", "--strict", *built)
    return ", ".join(f"{each.name} ({each.stat().st_size / 1e6:.1f} MB)" for each in built)


def packed_chart(version: str, registry: str) -> str:
    """The chart; Helm is on the PATH, or the test bed's."""
    helm = shutil.which("helm") or str(build.require_built() / "helm")
    packed = chart.package(
        REPOSITORY / "charts/ballast", TARGET, helm=helm, repository=f"{registry}/ballast", version=version
    )
    return packed.name


def software_bill(version: str) -> str:
    """CycloneDX of the image's locked dependencies, with their hashes, validated against its schema."""
    text = context.select_requirements((REPOSITORY / "requirements.lock").read_text(), context.runtime_closure())
    listed, target = TARGET / "requirements.txt", TARGET / "sbom.cdx.json"
    listed.write_text(text)
    options = ("--pyproject", "pyproject.toml", "--output-reproducible", "--validate", "--of", "JSON")
    _run(TOOLS / "cyclonedx-py", "requirements", *options, "-o", target, listed)
    bill: dict[str, Any] = json.loads(target.read_text())
    names = {each["name"] for each in bill["components"]}
    subject = bill["metadata"]["component"]
    if not names >= ROOTS or (subject["name"], subject["version"]) != ("ballast", version):
        raise ValueError(f"{target.name}: lacks {sorted(ROOTS - names)}, or is of {subject}")
    return f"{target.name}: {len(names)} components"


def image(version: str, registry: str, builder: str) -> str:
    """The image with its labels; `ballast --version` runs in it."""
    name = f"{registry}/ballast:{version}"
    labels = {
        "VERSION": version,
        "REVISION": _run("git", "rev-parse", "HEAD").strip(),
        "CREATED": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    built = _by_docker(name, labels) if builder == "docker" else _by_buildah(name, labels)
    said, found = built
    wanted = {f"org.opencontainers.image.{key.lower()}": value for key, value in labels.items()}
    wrong = {key: found.get(key) for key, value in wanted.items() if found.get(key) != value}
    if said.strip() != version or wrong or "org.opencontainers.image.licenses" not in found:
        raise ValueError(f"{name}: says {said.strip()!r}, labels that are not as asked for: {wrong}")
    return f"{name}: {len(found)} labels, `ballast --version` is {said.strip()}"


def _by_docker(name: str, arguments: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    prepared = context.prepare(_say)
    words = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    _run("docker", "build", "--quiet", "--file", "Dockerfile", "--tag", name, *words, prepared.folder)
    labels = json.loads(_run("docker", "image", "inspect", "--format", "{{json .Config.Labels}}", name))
    return _run("docker", "run", "--rm", name, "--version"), labels


def _by_buildah(name: str, arguments: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    return images.try_release(name, arguments, ("ballast", "--version"), TARGET / "image.oci.tar", _say)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--tag", help="The tag of the release: CHANGELOG.md must have its date, too.")
    parser.add_argument("--registry", default="localhost/release", help="Where image and chart would go.")
    parser.add_argument("--builder", choices=("buildah", "docker"), default="buildah", help="buildah needs root.")
    given = parser.parse_args(arguments)
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    try:
        version = versions.version_of()
        disagreeing = versions.problems(tag=given.tag)
        if disagreeing:
            raise ValueError("\n".join(disagreeing))
        (TARGET / "notes.md").write_text(versions.notes())
        steps: dict[str, Callable[[], str]] = {
            "package": lambda: python_packages(version),
            "chart": lambda: packed_chart(version, given.registry),
            "SBOM": lambda: software_bill(version),
            "image": lambda: image(version, given.registry, given.builder),
        }
        for step, make in steps.items():
            began = time.monotonic()
            print(f"{step:8} {make()}; {time.monotonic() - began:.0f} s", flush=True)
    except (ValueError, OSError, TestbedError) as error:
        _say(str(error))
        return 1
    print(f"version  {version} everywhere; nothing was published, all of it lies in {TARGET.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
