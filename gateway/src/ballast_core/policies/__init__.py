"""Policies: pure functions of a view. `registry` lists them."""
