"""The errors of beliefs: learned from the first part of a workload, scored on the part that was held back.

`lengths` has the survival curves of output length, `predictions` what gateways expect of engines. docs/calibration.md
explains the figures.
"""

from ballast_sim.calibration.lengths import (
    ESTIMATORS,
    PAPER_FIGURES,
    LengthScore,
    LengthSettings,
    score_lengths,
    workload_in_order,
)
from ballast_sim.calibration.predictions import FleetPredictions, predict_and_measure
from ballast_sim.calibration.scores import Reliability

__all__ = [
    "ESTIMATORS",
    "PAPER_FIGURES",
    "FleetPredictions",
    "LengthScore",
    "LengthSettings",
    "Reliability",
    "predict_and_measure",
    "score_lengths",
    "workload_in_order",
]
