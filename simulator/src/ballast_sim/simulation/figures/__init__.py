"""The figures of a run, over its requests and over its engines."""
