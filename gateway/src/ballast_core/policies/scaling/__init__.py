"""Scaling policies: how many instances of each role, as pure decisions that operator and simulator carry out."""
