"""A scaling policy in the loop of a run: it sees delayed measurements, and machines start, drain and change roles."""
