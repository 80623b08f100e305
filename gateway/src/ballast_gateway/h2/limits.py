"""What one peer may ask of an HTTP/2 server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server and of each of its connections. The defaults are far above what a proxy needs."""

    connections: int = 4096
    """Beyond them new ones are closed at once."""
    streams: int = 4096
    """Concurrent, of one connection. Beyond them they are refused; a proxy opens a further connection."""
    header_bytes: int = 16 << 10
    """A header block, as sent and as read."""
    stream_window: int = 1 << 20
    """Bytes that a stream may send ahead of what has been taken from it."""
    connection_window: int = 16 << 20
    """Bytes that all streams together may send ahead of what has been read."""
    unsent_bytes: int = 64 << 10
    """Of one stream, kept because the peer opens no window: beyond them no message of that stream is taken."""
    nuisances: int = 10_000
    nuisances_per_s: float = 1_000.0
    """Frames that bring no call forward (PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, resets of what was not
    answered, wrong streams): so many at once, and so many more in a second, and one for each message that is answered.
    More close the connection (CVE-2019-9512 and on, CVE-2023-44487, CVE-2024-27316, CVE-2025-8671)."""
    handshake_s: float = 10.0
    """Until the preface and the first SETTINGS have come, and for a header block that has begun."""
    stall_s: float = 30.0
    """For how long a peer may read nothing, or keep a finished answer's window closed."""
    ping_after_s: float = 30.0
    """Silence after which the peer is asked whether it is there."""
    ping_timeout_s: float = 20.0
    """Until it must have said anything."""
    idle_s: float = 3600.0
    """A connection without a stream for so long is closed."""
