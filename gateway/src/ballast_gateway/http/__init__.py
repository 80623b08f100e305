"""HTTP/1.1 on asyncio protocols and httptools: a server for clients, a client for engines.

It handles frames and connections, and imports nothing about OpenAI's API, endpoints or the Director. The proxy face,
scrapes and the benchmarks use the same client.
"""
