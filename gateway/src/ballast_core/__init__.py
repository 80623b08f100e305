"""The core: all decisions as pure code on the standard library and numpy. No clock, no I/O, no randomness.

It runs unchanged in the gateway and in the simulator. Every event carries its time; every result is data.
"""
