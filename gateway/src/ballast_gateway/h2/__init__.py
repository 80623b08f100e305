"""HTTP/2 for servers of gRPC (RFC 9113, RFC 7541, gRPC over HTTP/2), on an asyncio protocol: no task, no queue.

`frames` has the bytes of frames, `blocks` header blocks, `requests` what a block asks for, `connection` one connection
with its streams and flow control, `calls` gRPC on a stream, `server` the listening and its end. It knows nothing of
what is served: that is a `calls.Method`. Cleartext with prior knowledge only (h2c), as proxies speak it to a picker.
"""
