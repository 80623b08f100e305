"""Builders of child objects: one module per kind, pure functions from models to manifests.

A builder gets the ServingPool, the objects it refers to and its owner; never the cluster. Numbers that the API server
would rewrite (quantities) are written in its way, so that an unchanged object shows no difference.
"""
