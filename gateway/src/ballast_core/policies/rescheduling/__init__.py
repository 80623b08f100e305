"""Rescheduling: when a running decode moves to another endpoint (ARES)."""
