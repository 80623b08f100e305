"""`ballast demo`: a ServingPool as local processes, the same traffic under each of several policies, a table.

`plan` turns manifests into a fleet (pure), `processes` runs it, `run` replays the workload, `report` prints.
"""
