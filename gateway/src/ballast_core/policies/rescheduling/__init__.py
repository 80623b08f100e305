"""Rescheduling: migrating running decodes to other endpoints (ARES)."""
