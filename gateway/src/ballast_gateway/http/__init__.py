"""HTTP/1.1 on asyncio protocols and httptools: a server for clients, a client for engines.

It knows frames and connections, and nothing of OpenAI's API, of endpoints or of the Director. Scrapes, the proxy face
and the benchmarks use the same client.
"""
