"""Our engine against recorded runs of vLLM's own scheduler, step by step.

A golden file is complete in itself: settings, formula and requests are read from it (`golden`), our engine runs on them
(`replay`), and the first step that differs shows which rule is wrong (`comparison`).
"""

from ballast_sim.validation.comparison import Comparison, compare, first_difference
from ballast_sim.validation.golden import GoldenFileError, read_golden
from ballast_sim.validation.replay import replay

__all__ = ["Comparison", "GoldenFileError", "compare", "first_difference", "read_golden", "replay"]
