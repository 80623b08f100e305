"""Which policies a run compares, and those that only a simulator can run."""
