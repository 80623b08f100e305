"""Which `ballast` is tried: this checkout's or another one's, and which settings its gateway knows."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SCHEMA = "import json; from ballast_api.gateway_settings import GatewaySettings as G; print(json.dumps(G.model_json_schema(by_alias=True)))"  # noqa: E501


class Installation:
    """A `ballast` command, or this checkout's own where there is none."""

    def __init__(self, ballast: Path | None = None) -> None:
        if ballast is not None and not ballast.is_file():
            raise SystemExit(f"--ballast: {ballast} is no file")
        self.command = [sys.executable, "-m", "ballast_cli"] if ballast is None else [str(ballast)]
        self._python = sys.executable if ballast is None else str(ballast.with_name("python"))

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        said = subprocess.run([self._python, "-c", _SCHEMA], check=True, capture_output=True, text=True).stdout
        return dict(json.loads(said))

    def knows(self, path: str) -> bool:
        """Whether its gateway has a setting such as `limits.maxRetries`."""
        at = self._schema
        for name in path.split("."):
            at = self._resolved(at).get("properties", {}).get(name)
            if at is None:
                return False
        return True

    def known(self, settings: Mapping[str, Any], under: str = "") -> dict[str, Any]:
        """Settings without those that its gateway does not know."""
        kept: dict[str, Any] = {}
        for name, value in settings.items():
            path = f"{under}{name}"
            if self.knows(path):
                nested = isinstance(value, Mapping) and self._has_fields(path)
                kept[name] = self.known(value, f"{path}.") if nested else value
        return kept

    def _has_fields(self, path: str) -> bool:
        at = self._schema
        for name in path.split("."):
            at = self._resolved(at)["properties"][name]
        return "properties" in self._resolved(at)

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema behind its reference, or that of its first alternative that is an object."""
        if "$ref" in schema:
            return dict(self._schema["$defs"][schema["$ref"].rpartition("/")[2]])
        for each in schema.get("anyOf", ()):
            if "properties" in (found := self._resolved(each)):
                return found
        return schema
