"""Partition: where to cut a request into segments (Libra)."""
