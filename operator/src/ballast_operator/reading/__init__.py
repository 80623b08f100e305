"""What a look reads, and whom a change concerns."""
