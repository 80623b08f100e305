"""Golden runs: what vLLM's own engine core, scheduler and KV block manager decide, on a virtual clock.

Runs inside the environment that `make vllm` builds (vLLM 0.32, CPU wheel): `python -m vllm_golden FOLDER [CASE...]`.
Only the accelerator is replaced: a step lasts what `ballast_core.profiles` says. docs/golden.md tells how to read the
files; `ballast validate` runs our engine on them.
"""
