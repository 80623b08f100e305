"""Compiles `ballast_core/_kernel.c` into the wheel, with a C compiler of the machine or with PyPI's `ziglang`.

One extension for all Pythons from 3.11 on (limited API). Without a compiler, or with BALLAST_KERNEL=off, the package is
pure Python and decides with numpy: the same answers, slower. BALLAST_KERNEL=on makes a missing kernel an error.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = Path("gateway/src/ballast_core")
_LIBRARY = "_kernel.abi3.so"
_WITH_ZIG = {"x86_64", "amd64", "aarch64", "arm64", "i686", "armv7l", "ppc64le", "s390x", "riscv64"}
"""Machines for which `ziglang` has wheels."""
_FLAGS = [
    *("-O3", "-std=c11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Werror=implicit-function-declaration"),
    "-ffp-contract=off",  # the same roundings on every machine
]


def _own_compiler() -> list[str] | None:
    """$CC, or the first of cc, gcc and clang that is on the PATH."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [found] if found else None


def _compiler() -> list[str] | None:
    own = _own_compiler()
    if own is not None:
        return own
    if importlib.util.find_spec("ziglang") is None:
        return None
    # zig takes the machine's own instruction set and traps on undefined behaviour unless it is asked not to.
    return [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline", "-fno-sanitize=undefined"]


def compile_kernel(source: Path, target: Path, extra: list[str]) -> str:
    """Build the extension at `target`. Returns why that failed, or an empty text."""
    compiler = _compiler()
    if compiler is None:
        return "there is no C compiler"
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / target.name
        command = [*compiler, *_FLAGS, *shared, *extra, str(source), "-o", str(built), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"{command[0]} cannot be run: {error}"
        if done.returncode:
            return f"{shlex.join(command)} failed:\n{done.stderr.strip()[-2000:]}"
        # Never into the file itself: a running process may have it mapped.
        beside = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, beside)
        beside.replace(target)
    return ""


class KernelHook(BuildHookInterface[Any]):
    """hatchling's hook, for wheels and editable installations."""

    def dependencies(self) -> list[str]:
        """What the build needs beyond hatchling: a compiler, where the machine has none."""
        wanted = self.target_name == "wheel" and os.environ.get("BALLAST_KERNEL") != "off" and os.name == "posix"
        if not wanted or _own_compiler() is not None or platform.machine().lower() not in _WITH_ZIG:
            return []
        return ["ziglang>=0.13,<0.17"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile: into the source folder for an editable installation, else into the wheel."""
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        if self.target_name != "wheel":
            return
        package = Path(self.root) / _PACKAGE
        if version == "editable":
            target = package / _LIBRARY
            target.unlink(missing_ok=True)
        else:
            self._scratch = tempfile.TemporaryDirectory()
            target = Path(self._scratch.name) / _LIBRARY
        failure = self._compile(package / "_kernel.c", target)
        if failure:
            if os.environ.get("BALLAST_KERNEL") == "on":
                raise RuntimeError(f"BALLAST_KERNEL=on, but the kernel was not compiled: {failure}")
            self.app.display_warning(f"The kernel was not compiled, decisions run on numpy: {failure}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        if version != "editable":
            build_data["force_include"][str(target)] = f"ballast_core/{_LIBRARY}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for the wheel."""
        if self._scratch is not None:
            self._scratch.cleanup()

    @staticmethod
    def _compile(source: Path, target: Path) -> str:
        if os.environ.get("BALLAST_KERNEL") == "off":
            return "BALLAST_KERNEL=off"
        if os.name != "posix":
            return "it is built on Linux and macOS only"
        return compile_kernel(source, target, [])
