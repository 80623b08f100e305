"""A fleet of engines on one virtual clock, driven by the very Director that the gateway runs.

`kernel` is the heap, `fleet` what lives on it, `shapes` reads `8P@a100-qwen3-32b,4D@h20-qwen3-32b`, `results` counts.
Policies see scraped, delayed observations and what passes through their own gateway; never an engine's state.
"""
