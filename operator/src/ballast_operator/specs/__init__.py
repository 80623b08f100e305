"""Builders of child objects: one module per kind, pure functions from models to manifests.

A builder knows the ServingPool, what it refers to and its owner; never the cluster. Numbers that the API server would
rewrite (quantities) are written the way the server does, so that an unchanged object shows no difference.
"""
