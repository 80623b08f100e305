"""Engine truth on a virtual clock, workloads, load generation, and engine-sim, a vLLM-compatible server.

What is true here (`engine`) stays hidden from the policies, which see only scraped, delayed observations.
"""
