"""The proxy face's own tests run on uvloop, as the gateway does: its transports differ in detail from asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

_ON_UVLOOP = ("test_proxy_legs", "test_proxy_http", "test_attack_clients")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One loop for each test, by its module; TLS, which is the loops' own, on both."""
    if item.path.stem == "test_tls":
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    if item.path.stem in _ON_UVLOOP:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
