"""The gateways in front of the engines: a Director each, with its own stale view."""
