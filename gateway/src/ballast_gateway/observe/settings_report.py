"""Tells the fleet's Lease which settings this gateway has seen, and why it refuses them, if it does.

An annotation of its own, by merge patch: gateways never write over each other, and the operator reads them all at once.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client as kubernetes

from ballast_api import names
from ballast_gateway.observe.lease import call

_log = logging.getLogger(__name__)

_RETRY_S: Final = 5.0
_CALL_S: Final = 5.0
_MOST_CHARACTERS: Final = 500
"""Of a problem."""


class SettingsReport:
    """`say` what is to stand there; `run` writes it, and again until it is written."""

    def __init__(
        self, api: kubernetes.ApiClient, namespace: str, lease: str, me: str, *, retry_s: float = _RETRY_S
    ) -> None:
        self._api = api
        self._retry_s = retry_s
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases/{quote(lease)}"
        self._key = f"{names.ANNOTATION_SETTINGS}{me.replace(':', '_')}"  # keys have no colon, names may have a port
        self._due = asyncio.Event()
        self._value = ""

    def say(self, text_hash: str, problem: str) -> None:
        """The newest text, and why it is refused; no problem if it is in force."""
        self._value = f"{text_hash} {problem}".rstrip()[:_MOST_CHARACTERS]
        self._due.set()

    async def run(self) -> None:
        """Write what is said, for ever."""
        while True:
            await self._due.wait()
            self._due.clear()
            if not await self._written(self._value):
                await asyncio.sleep(self._retry_s)
                self._due.set()

    async def withdraw(self) -> None:
        """This gateway ends."""
        await self._written(None)

    async def _written(self, value: str | None) -> bool:
        patch = {"metadata": {"annotations": {self._key: value}}}
        try:
            async with asyncio.timeout(_CALL_S):
                status, _ = await call(self._api, "PATCH", self._path, patch, kind="application/merge-patch+json")
        except (aiohttp.ClientError, kubernetes.ApiException, TimeoutError, OSError, ValueError) as error:
            _log.info("the settings' report was not written", extra={"problem": str(error)})
            return False
        if status != HTTPStatus.OK:
            _log.info("the settings' report was refused", extra={"status": status})
        return status == HTTPStatus.OK
