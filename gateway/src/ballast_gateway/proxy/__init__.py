"""Proxy face: an OpenAI-compatible server that holds the client's stream and runs prefill, hand-off and decode itself.

The byte path is `ballast_gateway.http`.
"""
