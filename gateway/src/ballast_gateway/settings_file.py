"""The settings file of a running gateway: read again when it changes, checked whole, and passed on as news.

A mounted ConfigMap changes by a new link; how long a kubelet takes for that is docs/operator/settings.md's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from ballast_api.errors import InvalidInput, Problem, explain
from ballast_api.gateway_settings import GatewaySettings
from ballast_api.loading import parse_settings
from ballast_api.settings_changes import taken, text_hash, waits_for_restart
from ballast_gateway.file_stamps import Stamp, stamp

_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class News:
    """A new text of a settings file."""

    hash: str
    """Of the text."""
    settings: GatewaySettings | None
    """What a running gateway is to take; None: nothing, since the text is refused."""
    problem: str = ""
    """Why it is refused."""
    waits: tuple[str, ...] = ()
    """Fields that only a new process takes, and in which the text differs from what runs."""


class SettingsFile:
    """One file. `overridden` puts what the command line says over its settings; it may raise `InvalidInput`."""

    def __init__(
        self, path: Path, overridden: Callable[[GatewaySettings], GatewaySettings] = lambda settings: settings
    ) -> None:
        self.path = path
        self._overridden = overridden
        self.hash = ""
        """Of the text that was read last."""
        self._seen: Stamp = None

    def load(self) -> GatewaySettings:
        """Read it. Raises `InvalidInput`."""
        self._seen = stamp(self.path)
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise InvalidInput(str(self.path), [Problem("", f"cannot be read: {error.strerror}")]) from error
        self.hash = text_hash(text)
        try:
            return self._overridden(parse_settings(text.decode(), source=str(self.path)))
        except UnicodeDecodeError as error:
            raise InvalidInput(str(self.path), [Problem("", "is not UTF-8 text")]) from error

    def news(self, running: GatewaySettings) -> News | None:
        """What is new for a gateway that runs with these settings; None: the text is the one that was read last."""
        before = self.hash
        try:
            settings = self.load()
            if self.hash == before:
                return None
            waits = waits_for_restart(settings, running)
            try:
                return News(self.hash, taken(settings, running) if waits else settings, waits=waits)
            except ValidationError as error:
                problems = [Problem(each.field, f"{each.message}, until a restart") for each in explain(error)]
                raise InvalidInput(str(self.path), problems) from error
        except InvalidInput as error:
            refused = News(self.hash, None, str(error))
            if self.hash == before:  # it could not be read: the next text is news, also if it is the one before
                self.hash = ""
            return refused

    async def follow(self, running: Callable[[], GatewaySettings], tell: Callable[[News], None]) -> None:
        """Tell each change, for ever. The file is read on a thread, since YAML takes its time."""
        while True:
            await asyncio.sleep(_POLL_S)
            if stamp(self.path) != self._seen:
                news = await asyncio.to_thread(self.news, running())
                if news is not None:
                    tell(news)
