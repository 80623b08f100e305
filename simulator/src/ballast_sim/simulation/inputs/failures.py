"""Failures by script: which endpoint fails how, and when. Read and checked here, carried out by `fleet.outages`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from ballast_core.model import EndpointId
from ballast_sim.naming import known_names


class FailureKind(StrEnum):
    """How an endpoint may fail."""

    CRASH = "crash"
    """The engine dies with its KV and its requests, and is up again, empty, after `down_s`."""
    DRAIN = "drain"
    """It gets no new requests for the rest of the run, and finishes those that it has."""
    SLOW = "slow"
    """Its work takes `factor` times as long for `for_s`."""
    LOST_SCRAPES = "lost-scrapes"
    """It works, but its scrapes get no answer for `for_s`."""


_FIELDS: Mapping[FailureKind, tuple[str, ...]] = {
    FailureKind.CRASH: ("down_s",),
    FailureKind.DRAIN: (),
    FailureKind.SLOW: ("factor", "for_s"),
    FailureKind.LOST_SCRAPES: ("for_s",),
}
_COMMON = ("at_s", "endpoint", "kind")


LARGEST_NUMBER = 1e9


class FailureScriptError(ValueError):
    """A script that cannot be carried out; the message names file, entry, field and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One entry of a script."""

    at_s: float
    endpoint: EndpointId
    kind: FailureKind
    lasts_s: float = math.inf
    factor: float = 1.0
    """Of SLOW: how much longer everything takes."""

    def __str__(self) -> str:
        """For people, such as `slow by 2 of d000 at 10 to 20 s`."""
        factor = f" by {self.factor:g}" if self.kind is FailureKind.SLOW else ""
        until = f" to {self.ends_s:g} s" if math.isfinite(self.ends_s) else " s"
        return f"{self.kind}{factor} of {self.endpoint} at {self.at_s:g}{until}"

    @property
    def ends_s(self) -> float:
        """When it is over; infinity for a drain."""
        return self.at_s + self.lasts_s


def read_failures(path: Path, endpoints: Sequence[EndpointId]) -> tuple[Failure, ...]:
    """The script in a JSON or YAML file: a list of objects. Raises `FailureScriptError`.

    `endpoints` are those of the fleet, in its order: an entry names one by id or by its index, counted from 0.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FailureScriptError(f"{path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f": line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "no text"
        raise FailureScriptError(f"{path}{where}: neither JSON nor YAML ({problem})") from None
    except (ValueError, RecursionError) as error:
        raise FailureScriptError(f"{path}: neither JSON nor YAML ({error})") from None
    try:
        return parse_failures(entries, endpoints)
    except FailureScriptError as error:
        raise FailureScriptError(f"{path}: {error}") from None


def parse_failures(entries: object, endpoints: Sequence[EndpointId]) -> tuple[Failure, ...]:
    """The failures that a script's list describes, in its order. Raises `FailureScriptError`."""
    if not isinstance(entries, list):
        raise FailureScriptError("must hold a list of failures, each with at_s, endpoint and kind")
    failures = []
    for number, entry in enumerate(entries, 1):
        try:
            failures.append(_parse(entry, endpoints))
        except FailureScriptError as error:
            raise FailureScriptError(f"entry {number}: {error}") from None
    _check_overlaps(failures)
    return tuple(failures)


def _parse(entry: object, endpoints: Sequence[EndpointId]) -> Failure:
    if not isinstance(entry, dict):
        raise FailureScriptError(f"must be an object with {', '.join(_COMMON)}, not {entry!r}")
    kind = _kind(entry)
    known = (*_COMMON, *_FIELDS[kind])
    for name in entry:
        if name not in known:
            raise FailureScriptError(f"{name}: no field of {kind}; its fields are {', '.join(known)}")
    numbers = {name: _number(entry, name) for name in _FIELDS[kind]}
    return Failure(
        at_s=_number(entry, "at_s", zero=True),
        endpoint=_endpoint(entry, endpoints),
        kind=kind,
        lasts_s=numbers.get("down_s", numbers.get("for_s", math.inf)),
        factor=numbers.get("factor", 1.0),
    )


def _kind(entry: Mapping[object, object]) -> FailureKind:
    value = entry.get("kind")
    kinds = [kind.value for kind in FailureKind]
    if value is None:
        raise FailureScriptError(f"kind: is missing; write one of {', '.join(kinds)}")
    if value not in kinds:
        raise FailureScriptError(f"kind: unknown kind {value!r}; {known_names(str(value), kinds)}")
    return FailureKind(str(value))


def _number(entry: Mapping[object, object], name: str, *, zero: bool = False) -> float:
    value = entry.get(name)
    if value is None:
        raise FailureScriptError(f"{name}: is missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FailureScriptError(f"{name}: must be a finite number, not {value!r}")
    if LARGEST_NUMBER < value < math.inf:
        raise FailureScriptError(f"{name}: must be {LARGEST_NUMBER:g} or less")
    if not -math.inf < value < math.inf:
        raise FailureScriptError(f"{name}: must be a finite number, not {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise FailureScriptError(f"{name}: must be {'0 or more' if zero else 'above 0'}, not {value!r}")
    return float(value)


def _endpoint(entry: Mapping[object, object], endpoints: Sequence[EndpointId]) -> EndpointId:
    value = entry.get("endpoint")
    if value is None:
        raise FailureScriptError("endpoint: is missing; give an id or an index, counted from 0")
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(endpoints):
            raise FailureScriptError(f"endpoint: {value} is not in 0..{len(endpoints) - 1}")
        return endpoints[value]
    if value not in endpoints:
        raise FailureScriptError(f"endpoint: unknown endpoint {value!r}; {known_names(str(value), endpoints)}")
    return EndpointId(str(value))


def _check_overlaps(failures: Sequence[Failure]) -> None:
    """Two failures of one kind on one endpoint at one time would have no clear end."""
    numbered = sorted(enumerate(failures, 1), key=lambda item: (item[1].endpoint, item[1].kind, item[1].at_s))
    for (first, one), (second, other) in itertools.pairwise(numbered):
        if (one.endpoint, one.kind) == (other.endpoint, other.kind) and other.at_s < one.ends_s:
            raise FailureScriptError(
                f"entry {second}: at_s: {other.endpoint} is still under the {one.kind} of entry {first}, "
                + (f"until {one.ends_s:g} s" if math.isfinite(one.ends_s) else "for the rest of the run")
            )
