"""The build context of the project's image: locked dependencies as wheels, downloaded once, and ballast's own wheel."""

import dataclasses
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from testbed.errors import TestbedError
from testbed.spec import cache_root

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE_PYTHON = "3.11"  # of Debian 12 and of the default base image

_IMAGE_MARKERS = {"python_version": IMAGE_PYTHON, "python_full_version": f"{IMAGE_PYTHON}.0"}

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """A filled build context; the hashes tell a builder when a layer is out of date."""

    folder: Path
    dependencies_hash: str
    code_hash: str


def runtime_closure(root: str = "ballast", extra: str = "all") -> set[str]:
    """Canonical names of all distributions that `root[extra]` needs at run time, itself left out, as installed here.

    Raises TestbedError when one is not installed.
    """
    found: set[str] = set()
    waiting: list[tuple[str, str]] = [(root, ""), (root, extra)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            raise TestbedError(f"{name} is not installed in this environment; run `make setup`") from None
        found.add(name)
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                child = canonicalize_name(requirement.name)
                waiting += [(child, ""), *((child, each) for each in requirement.extras)]
    return found - {root}


def select_requirements(lock: str, names: Iterable[str]) -> str:
    """The lock file's blocks (requirement line and hashes) for these distributions, in the lock's order.

    A distribution may be locked once for each of several Pythons; the image's is taken, without its marker. Raises
    TestbedError when the lock file lacks one.
    """
    wanted = set(names)
    blocks: dict[str, str] = {}
    for match in re.finditer(r"^([^\s#-][^\\\n]*)((?:\\?\n[ \t]+--hash=\S+[ \t]*)*)", lock, re.MULTILINE):
        requirement = Requirement(match.group(1).strip())
        name = canonicalize_name(requirement.name)
        if name in wanted and (requirement.marker is None or requirement.marker.evaluate(_IMAGE_MARKERS)):
            blocks[name] = " \\\n    ".join(
                [f"{requirement.name}{requirement.specifier}", *re.findall(r"--hash=\S+", match.group(2))]
            )
    absent = wanted - blocks.keys()
    if absent:
        raise TestbedError(f"requirements.lock lacks {', '.join(sorted(absent))}; run `make lock`")
    return "".join(f"{block}\n" for block in blocks.values())


def digest(*parts: bytes) -> str:
    """16 hex digits over the parts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:16]


def _run(argv: list[str], what: str) -> None:
    result = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if result.returncode:
        raise TestbedError(f"{what} failed:\n{(result.stdout + result.stderr).strip()[-3000:]}")


def _download(requirements: Path, target: Path) -> None:
    """Wheels for the image's Python on this machine's architecture, complete or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        _run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--require-hashes", "--only-binary", ":all:", "--python-version", IMAGE_PYTHON,
                "--dest", scratch, "--requirement", str(requirements),
            ],
            "downloading the dependencies' wheels",
        )  # fmt: skip
        shutil.copytree(scratch, target)


def _build_wheel(target: Path) -> bytes:
    """Ballast's own wheel in `target`, its compiled kernel inside; returns its content. The same sources give the same
    bytes.
    """
    shutil.rmtree(target, ignore_errors=True)
    uv = Path(sys.prefix) / "bin" / "uv"
    _run([str(uv), "build", "--quiet", "--wheel", "--out-dir", str(target), str(REPOSITORY)], "building the wheel")
    (wheel,) = target.glob("*.whl")
    return wheel.read_bytes()


def prepare(say: Say) -> Context:
    """Fill the context folder; wheels are downloaded once per lock file. Raises TestbedError."""
    folder = cache_root() / "context"
    folder.mkdir(parents=True, exist_ok=True)
    text = select_requirements((REPOSITORY / "requirements.lock").read_text(), runtime_closure())
    dependencies_hash = digest(text.encode(), IMAGE_PYTHON.encode())
    requirements = folder / "requirements.txt"
    requirements.write_text(text)
    wheels = cache_root() / "wheels" / dependencies_hash
    if not wheels.exists():
        say("==> downloading the dependencies' wheels, once per lock file")
        wheels.parent.mkdir(exist_ok=True)
        _download(requirements, wheels)
    _link_wheels(wheels, folder / "wheels")
    code = _build_wheel(folder / "dist")
    return Context(folder, dependencies_hash, digest(code))


def _link_wheels(source: Path, target: Path) -> None:
    """Hard links: a build context may not point outside of itself."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
