"""Which settings are in force, and what became of the last text: for the admin API, metrics, the log and the fleet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from ballast_api.gateway_settings import GatewaySettings
from ballast_api.metric_making import counter, gauge
from ballast_gateway.logs import timestamp
from ballast_gateway.settings_file import News

_log = logging.getLogger(__name__)


class SettingsState:
    """Counts and remembers; `on_change` is called after each text that came."""

    def __init__(self, settings: GatewaySettings, text_hash: str, registry: CollectorRegistry) -> None:
        self.settings = settings
        self.hash = text_hash
        """Of the text in force; empty without a file."""
        self.generation = 1
        """One more with each text that is taken."""
        self.on_change: Callable[[], None] | None = None
        self._applied_unix_s = time.time()
        self._refused: News | None = None
        self._waits: tuple[str, ...] = ()
        gauge("ballast_gateway_settings_generation", registry, lambda: self.generation)
        gauge("ballast_gateway_settings_refused", registry, lambda: self._refused is not None)
        self._texts = counter("ballast_gateway_settings_texts_total", registry)
        for result in ("taken", "refused"):
            self._texts.labels(result)

    @property
    def problem(self) -> str:
        """Why the newest text is refused; empty if it is in force."""
        return "" if self._refused is None else self._refused.problem

    @property
    def newest_hash(self) -> str:
        """Of the newest text, in force or refused."""
        return self.hash if self._refused is None else self._refused.hash

    def taken(self, news: News, settings: GatewaySettings) -> None:
        """These are in force now."""
        self.settings, self.hash, self._waits, self._refused = settings, news.hash, news.waits, None
        self.generation += 1
        self._applied_unix_s = time.time()
        self._texts.labels("taken").inc()
        extra = {"event": "settings", "hash": news.hash, "generation": self.generation}
        if news.waits:
            waits = {**extra, "fields": list(news.waits)}
            _log.warning("took new settings, but for fields that need a restart", extra=waits)
        else:
            _log.info("took new settings", extra=extra)
        self._changed()

    def refused(self, news: News) -> None:
        """Those before stay in force."""
        self._refused = news
        self._texts.labels("refused").inc()
        extra = {"event": "settings-refused", "hash": news.hash, "problem": news.problem}
        _log.error("new settings are refused; those before stay in force", extra=extra)
        self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def report(self) -> dict[str, Any]:
        """For the admin API."""
        refused = self._refused
        return {
            "generation": self.generation,
            "hash": self.hash,
            "applied_at": timestamp(self._applied_unix_s),
            "refused": None if refused is None else {"hash": refused.hash, "problem": refused.problem},
            "waits_for_restart": list(self._waits),
            "settings": self.settings.dump(),
        }
