"""The endpoint-picker gateway: an asyncio shell around `ballast_core` with two faces, picker and proxy."""
