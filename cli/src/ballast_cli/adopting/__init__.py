"""Existing Deployments as a ServingPool: what is read, how vLLM's words are understood, and what becomes of each."""
