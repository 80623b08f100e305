"""What becomes of each request: its legs, its cuts, its record and the gaps between its tokens."""
