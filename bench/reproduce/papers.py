"""The papers of the report, in its order.

Each has a package here, whose module `paper` holds it. A package itself imports nothing: it counts as code of all runs
that call a function of it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator

from bench.reproduce.form import Claim, Experiment, Paper

NAMES = ("sibyl", "lmetric", "ares", "libra", "uniboost")


def _papers() -> Iterator[Paper]:
    for name in NAMES:
        if importlib.util.find_spec(f"bench.reproduce.{name}") is not None:
            paper = importlib.import_module(f"bench.reproduce.{name}.paper").PAPER
            assert isinstance(paper, Paper)
            yield paper


PAPERS: tuple[Paper, ...] = tuple(_papers())

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for paper in PAPERS for experiment in paper.experiments
}

CLAIMS: dict[str, Claim] = {claim.name: claim for paper in PAPERS for claim in paper.claims}
