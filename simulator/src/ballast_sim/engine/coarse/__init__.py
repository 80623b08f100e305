"""Coarse stepping: the same decisions, block by block, without a visit to every running request in every step.

`cohort` books requests in steady decode together; `calm` finds the steps in which only they advance; `engine` jumps
over these.
"""
