"""Five papers' claims, rerun under their own set-up and under realistic physics with strong baselines.

`make reproduce` computes a reduced set and says how it compares with what is committed; `make reproduce-full` computes
everything, resumes where it was stopped, and writes `bench/recorded/reproduction.json`, `docs/reproduction.md` and the
plots. Each paper has a package (`sibyl`, `lmetric`, ...) whose `paper.py` holds one `Paper`: its claims, and
experiments that put them to the test. `form.py` says what these are made of; `tests/bench/test_reproduce_plan.py` what
is asked of them.
"""
