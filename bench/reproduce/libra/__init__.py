"""Libra: requests cut at any token, and steps sized by the time between tokens."""
