"""What a run comes to, as numbers over its requests and over its engines."""
