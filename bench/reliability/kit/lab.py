"""Where an experiment runs: its engines and gateways, all ended with it."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from bench.reliability.kit.engines import PROFILE, Engine
from bench.reliability.kit.gateways import GatewayProcess
from bench.reliability.kit.installation import Installation


class Lab(AsyncExitStack):
    """`engines` by name, a gateway for each case, and the command line's `options`."""

    def __init__(self, installation: Installation, options: argparse.Namespace) -> None:
        super().__init__()
        self.installation = installation
        self.options = options
        self.engines: dict[str, Engine] = {}
        self._cases = 0

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.folder = self._folder()
        return self

    def _folder(self) -> Path:
        kept: Path | None = self.options.keep
        if kept is None:
            return Path(self.enter_context(tempfile.TemporaryDirectory(prefix="reliability-")))
        kept.mkdir(parents=True)
        return kept

    async def start_engines(self, *names: str, flags: tuple[str, ...] = (), profile: str = PROFILE) -> list[Engine]:
        """Engines of these names, listening."""
        new = [Engine(name, self.folder, *flags, profile=profile) for name in names]
        for engine in new:
            self.push_async_callback(engine.kill)
            self.engines[engine.name] = engine
        await asyncio.gather(*(engine.start() for engine in new))
        return new

    @asynccontextmanager
    async def gateway(
        self, name: str = "gateway", settings: Mapping[str, Any] | None = None, engines: Sequence[Engine] | None = None
    ) -> AsyncIterator[GatewayProcess]:
        """A fresh gateway in front of these engines, or of all, ready; in a folder of its own."""
        self._cases += 1
        folder = self.folder / f"{self._cases:02}-{name}"
        folder.mkdir()
        behind = list(self.engines.values()) if engines is None else engines
        gateway = GatewayProcess(self.installation, behind, folder, name, settings)
        try:
            await gateway.start()
            yield gateway
        finally:
            await gateway.kill()

    def cases(self, *names: str) -> Iterator[str]:
        """Those of these cases that the command line wants."""
        yield from (name for name in names if self.options.only in name)
