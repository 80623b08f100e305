"""When a running decode moves to another endpoint (ARES)."""
