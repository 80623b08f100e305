"""What experiments share: processes, clients that check every token, and counts of what became of requests."""
