"""What a user gets who installs Ballast: `python tools/installed.py [--wheel FILE] [--plain-only]`.

Builds the wheel from the sdist (unless one is given), installs it into fresh environments with the pins of
requirements.lock, and works with it from an empty folder, far from the checkout. The plain installation must stay below
its size, simulate and recommend, and each command that needs an extra must say which in one line. `sim` must serve the
demo; `gateway` and `operator` must find all that they import. Prints a row for each environment. Ends with status 1 and
the output of the first command that does something else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).resolve().parents[1]
PLAIN_LIMIT_MB = 120
"""Of site-packages with compiled files, without pip."""

_SHORT = ("--workload", "chat", "--duration", "20", "--slo", "ttft=2,tpot=0.05")
_PLAIN: Final[Sequence[Sequence[str]]] = (
    ("--version",),
    ("demo", "--help"),
    ("policies",),
    ("simulate", *_SHORT, "--endpoints", "1P@a100,2D@h20", "--rate", "2", "--html", "report.html"),
    ("recommend", *_SHORT, "--rate", "1", "--budget", "a100=2,h20=2"),
)
_REFUSED: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "sim": (("demo",), ("engine-sim", "serve", "org/model"), ("load", "--url", "http://127.0.0.1:9", "--model", "m")),
    "gateway": (("gateway", "--config", "none.yaml"), ("agent", "--help"), ("conformance", "epp", "--list")),
    "operator": (("operator", "--gateway-image", "image"), ("explain", "scaling", "pool")),
}
"""On the plain installation: by the extra that the answer must name."""

_GATEWAY_MODULES = ("main", "picker.codec", "picker.health", "h2.blocks", "observe.watch", "observe.peers")
"""Those that import what `gateway` brings beyond `sim`, some of them late."""


class Unexpected(Exception):
    """A command did something else than it should."""


@dataclass(frozen=True, slots=True)
class Installation:
    """A fresh virtual environment with the wheel."""

    folder: Path

    def run(self, *words: str, status: int = 0) -> str:
        """`ballast WORDS` from an empty folder; returns all output. Raises `Unexpected`."""
        outside = self.folder / "outside"
        outside.mkdir(exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        command = [str(self.folder / "bin" / "ballast"), *words]
        done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode != status:
            raise Unexpected(f"ballast {' '.join(words)}: status {done.returncode}, not {status}:\n{said[-3000:]}")
        return said

    def imports(self, *modules: str) -> None:
        """All can be imported. Raises `Unexpected`."""
        command = [str(self.folder / "bin" / "python"), "-I", "-c", f"import {', '.join(modules)}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unexpected(f"import {', '.join(modules)}:\n{done.stderr[-3000:]}")

    def megabytes(self) -> float:
        """Of site-packages, in units of 1e6 bytes, as on the disk's files."""
        return sum(each.stat().st_size for each in (self.folder / "lib").rglob("*") if each.is_file()) / 1e6


def build_wheel(target: Path) -> Path:
    """The wheel in `target`, built from the sdist: what the sdist lacks, the wheel lacks, too."""
    subprocess.run([_uv(), "build", "--quiet", "--out-dir", str(target), str(REPOSITORY)], check=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def _uv() -> str:
    beside = Path(sys.prefix) / "bin" / "uv"
    return str(beside) if beside.exists() else shutil.which("uv") or "uv"


@contextmanager
def installation(wheel: Path, extra: str = "") -> Iterator[Installation]:
    """Removed at the end."""
    with tempfile.TemporaryDirectory(prefix="ballast-installed-") as scratch:
        folder = Path(scratch)
        subprocess.run([_uv(), "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        what = f"ballast{f'[{extra}]' if extra else ''} @ {wheel.resolve().as_uri()}"
        pins = ["--constraint", str(REPOSITORY / "requirements.lock")]
        where = ["--python", str(folder / "bin" / "python"), "--compile-bytecode", "--quiet"]
        subprocess.run([_uv(), "pip", "install", *where, *pins, what], check=True)
        yield Installation(folder)


def check_plain(it: Installation) -> None:
    """Small, and whole without extras. Raises `Unexpected`."""
    size = it.megabytes()
    if size > PLAIN_LIMIT_MB:
        raise Unexpected(f"the plain installation takes {size:.0f} MB, more than {PLAIN_LIMIT_MB}")
    for words in _PLAIN:
        it.run(*words)
    for extra, commands in _REFUSED.items():
        for words in commands:
            said = it.run(*words, status=2)
            if f"pip install 'ballast[{extra}]'" not in said or len(said.splitlines()) != 1:
                raise Unexpected(f"ballast {' '.join(words)}: does not name the extra {extra} in one line:\n{said}")


def check_sim(it: Installation) -> None:
    """The demo, whole: engines, gateway and clients, each a process of this installation. Raises `Unexpected`."""
    it.run("engine-sim", "serve", "--help")
    it.run("demo", "--case", "quiet", "--duration", "5")


def check_gateway(it: Installation) -> None:
    """What gateway and agent import where they run, too. Raises `Unexpected`."""
    it.run("agent", "--help")
    it.run("conformance", "epp", "--list")
    it.imports(*(f"ballast_gateway.{name}" for name in _GATEWAY_MODULES), "jwt", "cryptography.x509")


def check_operator(it: Installation) -> None:
    """Raises `Unexpected`."""
    it.imports("ballast_operator.run", "ballast_operator.api.cluster")
    it.run("operator", "--gateway-image", "image", status=1)  # no cluster: in words


CHECKS = {"": check_plain, "sim": check_sim, "gateway": check_gateway, "operator": check_operator}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--wheel", type=Path, help="Take this one; build none.")
    parser.add_argument("--plain-only", action="store_true", help="Check the plain installation only.")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ballast-wheel-") as scratch:
        wheel = given.wheel or build_wheel(Path(scratch))
        for extra, check in CHECKS.items():
            if extra and given.plain_only:
                continue
            began = time.monotonic()
            with installation(wheel, extra) as it:
                name, size = f"ballast[{extra}]" if extra else "ballast", it.megabytes()
                try:
                    check(it)
                except Unexpected as error:
                    sys.stderr.write(f"{name}: {error}\n")
                    return 1
            print(f"{name:18} {size:4.0f} MB   as it should in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
