"""The rate that a fleet sustains, found by simulation and kept on disk."""
