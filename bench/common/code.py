"""Digests of the code that figures depend on, so that a change recomputes what it can have changed, and no more.

Comments, docstrings and blank lines do not count. What a run depends on is what its modules import: the run itself with
core and simulator (`common_digest`), and the modules of its placements (`placement_digest`). Edit a placement, and only
its own runs, and those of placements that import it, are computed anew.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import ballast_core
import ballast_sim
from ballast_core.profiles import HardwareProfile
from ballast_sim.simulation.policies.choice import PolicyChoice

ROOTS = {
    **{package.__name__: Path(str(package.__file__)).parent for package in (ballast_core, ballast_sim)},
    "bench": Path(__file__).parents[1],
}
ENTRY_MODULES = ("ballast_sim.simulation.runs.experiment", "ballast_sim.simulation.capacity.search")
STOP_MODULES = frozenset(
    {
        "ballast_core.policies.registry",
        "ballast_core.policies.placement.registry",
        "ballast_sim.simulation.policies.only_simulated",
    }
)
"""These import every placement, to build the one that is wanted."""
DIGITS = 12


@functools.cache
def common_digest() -> str:
    """Of all that runs of any placement share."""
    return digest([*_files(_common()), Path(__file__).with_name("seeding.py")])


def placement_digest(choice: PolicyChoice) -> str:
    """Of the modules of its policies that are not common."""
    return modules_digest(*(_module(policy) for policy in choice.suite.parts().values() if policy is not None))


def profile_digest(profiles: Iterable[HardwareProfile]) -> str:
    """Of the numbers of hardware profiles; the law that uses them is common code."""
    text = "\n".join(sorted({repr(profile) for profile in profiles}))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _module(policy: object) -> str:
    return type(policy).__module__


@functools.cache
def modules_digest(*modules: str) -> str:
    """Of these modules and what they import, but for what is common."""
    return digest(_files(closure(modules) - _common()))


@functools.cache
def _common() -> frozenset[str]:
    return closure(ENTRY_MODULES)


def _files(modules: Iterable[str]) -> list[Path]:
    return [file for module in sorted(modules) if (file := file_of(module)) is not None]


def digest(files: Iterable[Path]) -> str:
    """Over names and Python code of files; see `essence`."""
    hashed = hashlib.sha256()
    for file in files:
        hashed.update(f"{file.name}\n{essence(file.read_text(encoding='utf-8'))}\n".encode())
    return hashed.hexdigest()[:DIGITS]


def closure(modules: Iterable[str]) -> frozenset[str]:
    """These modules and all of core, simulator and studies that they import, through others, too."""
    found: set[str] = set()
    left = list(modules)
    while left:
        module = left.pop()
        if module in found or module in STOP_MODULES:
            continue
        file = file_of(module)
        if file is None:
            continue
        found.add(module)
        left += imports(file.read_text(encoding="utf-8"))
        left.append(module.rpartition(".")[0])
    return frozenset(found)


def file_of(module: str) -> Path | None:
    """The source of a module of core, simulator or studies; None for all else."""
    package, _, rest = module.partition(".")
    if package not in ROOTS:
        return None
    base = ROOTS[package].joinpath(*rest.split(".")) if rest else ROOTS[package]
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


def imports(source: str) -> Iterator[str]:
    """Names that may be modules; those that are not have no file."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case _:
                pass


def essence(source: str) -> str:
    """Python source without comments, docstrings, blank lines and trailing blanks. The same on any Python version."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                lines[first - 1 : last] = [""] * (last - first + 1)
            case _:
                pass
    return "\n".join(line.rstrip() for line in lines if line.strip())
