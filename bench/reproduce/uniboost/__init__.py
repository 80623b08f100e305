"""UniBoost: tail-aware order inside of engines, without predictions."""
