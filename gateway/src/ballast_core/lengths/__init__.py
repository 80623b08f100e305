"""How many output tokens running requests have still to come: predictors behind one interface."""

from ballast_core.lengths.predictors import PREDICTORS, Hinted, Predictor, Survival

__all__ = ["PREDICTORS", "Hinted", "Predictor", "Survival"]
