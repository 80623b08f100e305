"""Which placement for which traffic: all of them on all workloads, at two loads, recorded and checked.

`make matrix` computes what is missing and writes `bench/recorded/matrix.json`, `docs/matrix.md` and the data files of
`docs/matrix`; `make matrix-check` recomputes a few of its runs.
"""
