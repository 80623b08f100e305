"""The truth that no policy sees: engines, the links between them, and the transfers that share a link."""
