"""Runs from their description to their figures, one by one or over processes."""
