"""Policies: pure decisions from a view. `registry` lists all of them."""
