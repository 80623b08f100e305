"""The scores as plain numbers, as `ballast calibrate --json` writes them. What is not known is None."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ballast_sim.calibration.lengths import LengthScore
from ballast_sim.calibration.predictions import FleetPredictions


def length_figures(found: LengthScore) -> dict[str, Any]:
    """One estimator under one condition."""
    score = found.score
    return {
        "estimator": found.estimator,
        "limits": found.limited,
        "by_class": found.by_class,
        "learned_ends": found.learned_ends,
        "cut": found.cut,
        "held_back": found.held_back,
        "brier": score.brier,
        "brier_best": score.brier_best,
        "calibration_error": score.calibration_error,
        "bins": [asdict(one) for one in score.bins],
        "surface": {
            "mean": _known(score.surface_mean),
            "max": _known(score.surface_max),
            "below_5_percent": _known(score.surface_below(0.05)),
            "ages_tokens": score.ages.tolist(),
            "look_aheads_tokens": score.horizons.tolist(),
            "error": [[_known(error) for error in row] for row in score.surface.tolist()],
        },
        "remaining_error_ratio": _known(score.remaining_error_ratio),
        "coverage": {f"p{100 * probability:g}": share for probability, share in score.coverage.items()},
        "classes": [asdict(one) for one in found.classes],
    }


def fleet_figures(found: FleetPredictions) -> dict[str, Any]:
    """One simulated run."""
    return asdict(found)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
