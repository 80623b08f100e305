"""The gateways in front of the engines. Each has its own Director with its own stale view."""
