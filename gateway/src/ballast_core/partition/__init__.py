"""Splitting requests: what it takes to predict the parts. Pure."""
