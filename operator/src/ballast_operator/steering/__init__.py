"""The loop that decides on instances, and what is told of it."""
