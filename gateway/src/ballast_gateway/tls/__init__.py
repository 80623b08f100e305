"""TLS of the gateway's own listeners: `certificates` has what is shown to clients, `listener` who gets to see it.

TLS itself is the event loop's (OpenSSL). A connection without TLS is handed over as it is and costs nothing more.
"""
