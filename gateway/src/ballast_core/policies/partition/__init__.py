"""Partition: cutting a request into segments for several endpoints (Libra)."""
