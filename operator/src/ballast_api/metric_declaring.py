"""What a metric is, which labels there are, and what bounds their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cause": "A fixed list; for ejections `in-a-row`, `share`, `probe`, `silent`, for shed requests `in-flight`, "
        "`queue-full`, `backlog`, `waited`.",
        "count": "`wanted`, `ready`, `updated`.",
        "direction": "`in`, `out`.",
        "endpoint": "Endpoints that discovery knows now, by id (a pod's name). Series end with their endpoint.",
        "estimate": "`predicted`, `observed`, `other`.",
        "face": "`proxy`, `picker`.",
        "fault": "A fixed list of 6.",
        "kind": "Kinds of objects that the operator looks at (4) or writes: a fixed list of 18.",
        "knowledge": "`complete`, `partial`.",
        "le": "Bounds of a histogram's buckets, at most 17.",
        "limit": "`in-flight`, `tokens`.",
        "missing": "`prefill`, `decode`.",
        "model": "Served names and loaded adapters, or empty: names that clients make up never enter.",
        "namespace": "Of a ServingPool.",
        "objective": "Names of ServiceLevelObjectives, 16 for each gateway at most; empty: requests of no class.",
        "outcome": "A fixed list, at most 7.",
        "part": "`wait`, `prefill`, `decode`.",
        "policy": "Names of the placements in use: one or two, and those before a change of settings.",
        "pool": "Pools of the ServingPool.",
        "prefix": "`hit`, `miss`.",
        "pulse": "`steady`, `suspected`, `lost`.",
        "quantity": "`prefill`, `step`.",
        "reason": "A fixed list: codes of our own errors, reasons of conditions.",
        "result": "A fixed list, at most 3.",
        "role": "`prefill`, `decode`, `flexible`.",
        "serving_pool": "Names of ServingPools.",
        "source": "`seen`, `believed`.",
        "stage": "`prefill`, `decode`.",
        "state": "A fixed list, at most 4.",
        "status": "`True`, `False`, `Unknown`.",
        "tenant": "Names in the keys file; empty: all tenants of tokens that it does not name.",
        "threshold": "`ttft`, `tpot`, `e2e`, `joint`.",
        "type": "Types of conditions: 5.",
        "version": "One.",
    }
)
"""Each label that a metric may have, and what bounds its values."""

TARGET_LABELS: Final = ("namespace", "serving_pool", "pod", "job", "instance", "worker", "gateway")
"""Labels that a scrape adds (`charts/ballast`, docs/observe.md), or a gateway with workers or several gateways."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """As Prometheus shows it; a histogram's without `_bucket`, `_sum`, `_count`."""
    kind: Kind
    labels: tuple[str, ...]
    about: str
    """Its HELP."""
    advice: str
    """What to do when it moves."""

    @property
    def unit(self) -> str:
        """Of its value, by its name."""
        base = self.name.removesuffix("_total")
        for ending, unit in _UNITS.items():
            if base.endswith(ending):
                return unit
        return "count"

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


_UNITS: Final = {
    "_timestamp_seconds": "seconds since 1970",
    "_seconds": "seconds",
    "_seconds_variance": "seconds squared",
    "_tokens": "tokens",
    "_ratio": "ratio",
    "_info": "1",
}


def declared(prefix: str, *rows: tuple[str, Kind, str, str, str]) -> Iterator[Metric]:
    """Metrics of one prefix: name, kind, labels, what it is, and what to do when it moves."""
    for name, kind, labels, about, advice in rows:
        yield Metric(f"{prefix}_{name}", kind, tuple(labels.split()), about, advice)
