"""`bench/recorded/matrix.json`: every figure of the matrix with the settings and the code that it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.common.store import Code, Store
from bench.matrix.cells import COMPARISON_SEEDS, SELECTION_SEEDS
from bench.matrix.results import Capacity, Figures

CHECKOUT = Path(__file__).parents[2]
FILE = CHECKOUT / "bench" / "recorded" / "matrix.json"
COLUMNS = tuple(column.name for column in fields(Figures))


@dataclass(frozen=True, slots=True)
class Run:
    """Figures and where they come from."""

    figures: Figures
    code: Code


@dataclass(slots=True)
class RecordedCell:
    """One cell. `settings` describe its runs but for placement and seed."""

    settings: dict[str, Any]
    rate_rps: float
    """Mean rate of load 1.0."""
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)

    def description(self, placements: list[str], seed: int) -> dict[str, Any]:
        """Of a run, as `RunJob.description`."""
        return {**self.settings, "policy": placements, "seed": seed}

    @property
    def figures(self) -> dict[tuple[str, int], Figures]:
        """By placement and seed."""
        return {key: run.figures for key, run in self.runs.items()}


@dataclass(slots=True)
class RecordedCapacity:
    """One measured capacity."""

    description: dict[str, Any]
    capacity: Capacity
    code: Code


@dataclass(slots=True)
class Record:
    """The whole matrix. `policies` maps names to both placements with their parameters."""

    versions: dict[str, str]
    policies: dict[str, list[str]]
    capacities: dict[str, RecordedCapacity] = field(default_factory=dict)
    """By workload and kind of fleet: `azure/balanced`."""
    cells: dict[str, RecordedCell] = field(default_factory=dict)

    def feed(self, store: Store) -> None:
        """Put every result into a store that does not have it."""
        for known in self.capacities.values():
            if store.get(known.description, known.code) is None:
                store.put(known.description, known.code, asdict(known.capacity))
        for cell in self.cells.values():
            for (policy, seed), run in cell.runs.items():
                description = cell.description(self.policies[policy], seed)
                if store.get(description, run.code) is None:
                    store.put(description, run.code, asdict(run.figures))


def write(record: Record, path: Path = FILE) -> None:
    """As JSON with a line for each placement in each cell."""
    codes: dict[Code, int] = {}
    cells = {name: _packed(cell, codes) for name, cell in record.cells.items()}
    head = {
        "versions": record.versions,
        "selection_seeds": SELECTION_SEEDS,
        "comparison_seeds": COMPARISON_SEEDS,
        "policies": record.policies,
        "columns": [*COLUMNS, "code"],
    }
    capacities = {name: asdict(known) for name, known in record.capacities.items()}
    lines = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    lines.append(f'"code": {json.dumps([astuple(code) for code in codes])}')
    lines.append(f'"capacities": {_block(capacities)}')
    lines.append('"cells": {\n' + ",\n".join(_cell_text(name, cell) for name, cell in cells.items()) + "\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _packed(cell: RecordedCell, codes: dict[Code, int]) -> dict[str, Any]:
    runs: dict[str, dict[str, list[float]]] = {}
    for (policy, seed), run in sorted(cell.runs.items()):
        code = codes.setdefault(run.code, len(codes))
        runs.setdefault(policy, {})[str(seed)] = [*astuple(run.figures), code]
    return {"settings": cell.settings, "rate_rps": cell.rate_rps, "runs": runs}


def _cell_text(name: str, cell: Mapping[str, Any]) -> str:
    head = f'"settings": {json.dumps(cell["settings"])},\n"rate_rps": {json.dumps(cell["rate_rps"])}'
    return f'{json.dumps(name)}: {{{head},\n"runs": {_block(cell["runs"])}}}'


def _block(values: Mapping[str, Any]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()) + "\n}"


def read(path: Path = FILE) -> Record:
    """Raises ValueError naming the file where it is no record; FileNotFoundError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["columns"] != [*COLUMNS, "code"]:
            raise ValueError("columns are not those of this version")
        return Record(
            versions=data["versions"],
            policies=data["policies"],
            capacities={
                name: RecordedCapacity(known["description"], Capacity(**known["capacity"]), Code(**known["code"]))
                for name, known in data["capacities"].items()
            },
            cells={
                name: RecordedCell(
                    cell["settings"],
                    cell["rate_rps"],
                    dict(_runs(cell["runs"], [Code(*code) for code in data["code"]])),
                )
                for name, cell in data["cells"].items()
            },
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no matrix that this version can read ({error}); make it again") from None


def _runs(runs: Mapping[str, Mapping[str, list[Any]]], codes: list[Code]) -> Iterator[tuple[tuple[str, int], Run]]:
    for policy, by_seed in runs.items():
        for seed, (*values, code) in by_seed.items():
            yield (policy, int(seed)), Run(Figures(*values), codes[code])
