"""Each request of a run: its legs, its cuts, its record and the gaps between its tokens."""
