"""The API server: its client, and what is kept of it."""
