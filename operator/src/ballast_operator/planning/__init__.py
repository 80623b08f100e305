"""From what was read to the objects that must be. Pure."""
