"""The decisions, pure: standard library and numpy; no clock, no I/O, no randomness.

Runs unchanged in the gateway and in the simulator. Every event carries its time; every answer is data.
"""
