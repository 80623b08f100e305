"""The truth that no policy sees: engines, the links between them, and who shares a link."""
