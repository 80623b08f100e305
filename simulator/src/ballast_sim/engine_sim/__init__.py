"""engine-sim: a server that speaks vLLM's HTTP API and takes its timing from `ballast_sim.engine`.

A drop-in for `vllm serve` wherever no GPU is at hand: tests, the demo, a cluster without accelerators. Every answer
goes through real sockets, real scheduling and real metrics; only the matrix multiplications are replaced by the
step-time law.
"""
