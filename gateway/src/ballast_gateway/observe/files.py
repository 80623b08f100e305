"""Discovery from an endpoints file: read at the start, and again whenever it changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ballast_api.errors import InvalidInput
from ballast_api.loading import load_endpoints
from ballast_gateway.file_stamps import Stamp, stamp
from ballast_gateway.observe.fleet import Fleet

_log = logging.getLogger(__name__)
_POLL_S = 0.5


class FileDiscovery:
    """Keeps the fleet equal to the file. A file that is unreadable or wrong changes nothing until it is mended."""

    def __init__(self, path: Path, fleet: Fleet) -> None:
        self._path = path
        self._fleet = fleet
        self._seen: Stamp = None

    def load(self) -> None:
        """Read the file. Raises `InvalidInput`."""
        self._seen = stamp(self._path)
        entries = load_endpoints(self._path).endpoints
        endpoints = [(entry.to_core(), entry.pod_api or "") for entry in entries]
        self._fleet.keep_only({endpoint.id for endpoint, _ in endpoints})
        for endpoint, pod_api in endpoints:
            self._fleet.ready(endpoint, proven=False, pod_api=pod_api)
        self._fleet.synced = True

    async def run(self) -> None:
        """Watch the file forever."""
        while True:
            await asyncio.sleep(_POLL_S)
            if stamp(self._path) == self._seen:
                continue
            try:
                self.load()
            except InvalidInput as error:
                _log.warning("the endpoints file is not usable; keeping the endpoints", extra={"problem": str(error)})
            else:
                _log.info("read the endpoints file", extra={"endpoints": len(self._fleet.members)})
