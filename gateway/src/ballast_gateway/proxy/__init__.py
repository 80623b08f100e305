"""Proxy face: an OpenAI-compatible server that holds the client's stream and runs prefill, hand-off and decode itself.

The byte path: HTTP/1.1 on asyncio protocols and httptools, for clients (`connection`) and engines (`upstream`) alike.
"""
