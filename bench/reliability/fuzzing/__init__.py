"""A whole gateway without sockets, in front of engines whose answers are mutated: see `experiments/fuzz_engines.py`."""
