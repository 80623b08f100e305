"""ARES: running decodes move, by predicted load."""
