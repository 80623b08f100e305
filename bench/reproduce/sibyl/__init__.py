"""SIBYL: decodes are placed by the load projected to the hand-off."""
