"""The picker face as a server: ext_proc and gRPC health."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ballast_api.gateway_settings import GatewaySettings
from ballast_core.model import EndpointId, Observation
from ballast_gateway.driver import Driver
from ballast_gateway.keys import KeyRing
from ballast_gateway.picker import h2_transport
from ballast_gateway.picker.exchange import ExchangeSettings
from ballast_gateway.picker.face import PickerFace, PickerListener
from ballast_gateway.picker.health import listen_health
from ballast_gateway.picker.planned import Holders
from ballast_gateway.picker.query import Carries
from ballast_gateway.picker.transport import Listen, Transport
from ballast_gateway.prompts import PromptReader
from ballast_gateway.records import RequestRecord
from ballast_gateway.service_classes import ServiceClasses
from ballast_gateway.tls.certificates import Tls
from ballast_gateway.tokenizing import Tokenizing
from ballast_gateway.trust import Trusted

if TYPE_CHECKING:
    from ballast_gateway.tracing.exporting import Tracing

_MESSAGE_SLACK_BYTES: Final = 1 << 20
"""Room in a message for all but the body: headers, metadata."""
_TELL_S: Final = 0.2
"""How long the last answers may take."""


class PickerServer:
    """A running picker face. Close it with `aclose`."""

    def __init__(
        self,
        transport: Transport,
        health: Transport,
        face: PickerFace,
        *,
        drain_timeout_s: float,
        stop: Callable[[], None],
    ) -> None:
        """`stop`: report NOT_SERVING from now on."""
        self._face = face
        self._transport = transport
        self._health = health
        self._drain_timeout_s = drain_timeout_s
        self.drain = stop
        """Report NOT_SERVING from now on; go on serving streams."""

    @property
    def port(self) -> int:
        """ext_proc."""
        return self._transport.port

    @property
    def health_port(self) -> int:
        """gRPC health."""
        return self._health.port

    def use(
        self,
        settings: GatewaySettings,
        *,
        tokenizing: Tokenizing | None,
        served: Collection[str],
        carries: Carries | None,
    ) -> None:
        """Serve streams that begin from now on by these; the arguments are those of `serve`."""
        face = self._face
        face.settings = exchange_settings(
            face.driver,
            settings,
            tokenizing=tokenizing,
            served=served,
            carries=carries,
            classes=face.settings.classes,
            keys=face.settings.keys,
        )
        face.tokenizing = tokenizing
        face.settle_s = face.unseen.settle_s = settings.scrape.interval_s

    def observed(self, endpoint_id: EndpointId, observation: Observation) -> None:
        """An endpoint was scraped; called before the Director learns of it."""
        self._face.unseen.observed(endpoint_id, observation)

    def lost(self, endpoint_id: EndpointId) -> None:
        """An endpoint is lost; called after the Director has learned of it."""
        self._face.unseen.lost(endpoint_id)

    async def aclose(self, grace_s: float | None = None) -> None:
        """Drain, give running streams `grace_s` seconds (default: `limits.drainTimeoutS`), and stop.

        A request that is still held then is answered 503; other streams are broken off.
        """
        self.drain()
        limit_s = self._drain_timeout_s if grace_s is None else grace_s
        stopping = asyncio.create_task(self._transport.aclose(limit_s + _TELL_S))
        await asyncio.wait({stopping}, timeout=limit_s)
        self._face.shut_down()
        await stopping
        await self._health.aclose(0)
        self._face.unseen.close()


def exchange_settings(
    driver: Driver,
    settings: GatewaySettings,
    *,
    tokenizing: Tokenizing | None = None,
    served: Collection[str] | None = None,
    carries: Carries | None = None,
    classes: ServiceClasses | None = None,
    keys: KeyRing | None = None,
) -> ExchangeSettings:
    """What exchanges follow; the arguments are those of `serve`."""
    return ExchangeSettings(
        max_body_bytes=settings.limits.max_body_bytes,
        max_text_body_bytes=settings.limits.max_text_body_bytes,
        served_models=settings.model.served_names if served is None else served,
        default_model=settings.model.served_names[0],
        prompts=PromptReader(driver.abilities.beliefs, wants_tokens=tokenizing is not None),
        trusted=Trusted(settings.trust),
        extra_paths=frozenset(settings.extra_paths),
        carries=carries,
        classes=ServiceClasses() if classes is None else classes,
        keys=keys,
    )


async def serve(
    driver: Driver,
    settings: GatewaySettings,
    *,
    ready: Callable[[], bool] = lambda: True,
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    listeners: tuple[PickerListener, ...] = (),
    tokenizing: Tokenizing | None = None,
    on_record: Callable[[RequestRecord], None] = lambda record: None,
    tls: Tls | None = None,
    listen: Listen | None = None,
    served: Collection[str] | None = None,
    holders: Holders | None = None,
    carries: Carries | None = None,
    classes: ServiceClasses | None = None,
    tracing: Tracing | None = None,
    keys: KeyRing | None = None,
) -> PickerServer:
    """Listen for ext_proc and for health, with `tls` or in plaintext; ext_proc by `listen`, if not by our own HTTP/2.
    `ready` returns whether the gateway can place requests.
    `tokenizing` has the tokens of text prompts, where endpoints report what they cache. `served` are the names that
    clients may ask for, if they are not those of the model alone. `holders`: the agents of the pods, where they are
    spoken with, and `carries` what they could do with a request, where a policy asks. `classes` have the objectives of
    requests, `tracing` makes their traces. `keys`: whose requests are served; None: everybody's.

    Raises `OSError` if a port is taken.
    """
    draining = False

    def stop() -> None:
        nonlocal draining
        draining = True

    limits, at = settings.limits, settings.listeners
    exchange = exchange_settings(
        driver, settings, tokenizing=tokenizing, served=served, carries=carries, classes=classes, keys=keys
    )
    face = PickerFace(
        driver,
        exchange,
        new_id=new_id,
        settle_s=settings.scrape.interval_s,
        listeners=listeners,
        tokenizing=tokenizing,
        on_record=on_record,
        holders=holders,
        tracing=tracing,
    )
    # Twice the limit: a body that is a little too large gets a 413; beyond that the transport breaks the stream off.
    max_message_bytes = 2 * limits.max_body_bytes + _MESSAGE_SLACK_BYTES
    listen = listen or partial(h2_transport.listen, tls=tls, shared=settings.workers > 1)
    transport = await listen(face.open, host=at.host, port=at.ext_proc, max_message_bytes=max_message_bytes)
    try:
        # Health answers without TLS where TLS is required, too: kubelets probe without.
        health = await listen_health(
            lambda: ready() and not draining,
            host=at.host,
            port=at.grpc_health,
            tls=None if tls is None else replace(tls, required=False),
            shared=settings.workers > 1,
        )
    except OSError:
        await transport.aclose(0)
        raise
    return PickerServer(transport, health, face, drain_timeout_s=limits.drain_timeout_s, stop=stop)
