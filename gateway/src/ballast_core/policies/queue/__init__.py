"""Queue orders: which waiting request goes first, in the gateway and in an engine."""
