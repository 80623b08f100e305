"""Queue orders: who goes first, in the gateway and in an engine."""
