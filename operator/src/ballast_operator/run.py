"""The operator's process: credentials, kopf, logs."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from datetime import UTC, datetime
from typing import Final, Literal

import kopf

from ballast_operator.api.cached import CachedCluster, connections_of
from ballast_operator.api.cluster import Cluster, load_credentials
from ballast_operator.api.kept import Change
from ballast_operator.controller import Controller, Key
from ballast_operator.gateways.board import Board
from ballast_operator.gateways.collecting import Collector
from ballast_operator.gateways.surveying import ask_loads
from ballast_operator.handlers import kopf_settings, registry_for
from ballast_operator.kinds import HARDWARE_PROFILE, SERVING_POOL, Kind
from ballast_operator.leading import Election
from ballast_operator.metrics import OperatorMetrics
from ballast_operator.profiles.learning import Learner
from ballast_operator.profiles.lessons import Lessons
from ballast_operator.reading.users import Users
from ballast_operator.reconcile import Reconciler
from ballast_operator.scaling.helm import Helm
from ballast_operator.settings import OperatorSettings
from ballast_operator.steering.steering import Scaler
from ballast_operator.waking import Waking

LogFormat = Literal["text", "json"]
_TOKEN_BYTES: Final = 32
_LEASE_CALL_S: Final = 5.0
"""Half of what a leader has to renew in."""


def run(settings: OperatorSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises `ApiFailure` when there are no credentials."""
    load_credentials()
    # kopf names itself by this, or else by the user's name, which the bare uid of a container does not have.
    os.environ.setdefault("POD_ID", socket.gethostname())

    def make_controller() -> Controller:
        loop = asyncio.get_running_loop()

        def told(kind: Kind, changes: list[Change]) -> None:
            loop.call_soon_threadsafe(waking.told, kind, changes)

        def turned(_: Kind) -> None:
            loop.call_soon_threadsafe(waking.turned)

        server, watched = (
            Cluster(timeout_s=settings.request_timeout_s, connections=connections)
            for connections in (settings.workers + 3, connections_of(settings.namespaces))
        )
        cluster = CachedCluster(
            server,
            watched,
            settings.namespaces,
            told=told,
            turned=turned,
            absent_retry_s=settings.resync_s / 2,
        )
        board, helm, users, lessons = Board(), Helm(), Users(), Lessons()
        metrics = OperatorMetrics()
        if settings.metrics_port:
            metrics.serve(settings.metrics_port)
        reconciler = Reconciler(
            cluster,
            cluster,
            settings,
            _now,
            _token,
            board=board,
            users=users,
            helm=helm,
            lessons=lessons,
            said=metrics.said,
            ask=ask_loads,
            set_back=metrics.set_back,
        )
        controller = Controller(reconciler, settings, metrics.looked, cluster, metrics.begins)
        waking = Waking(controller, users, lambda: cluster.kept(SERVING_POOL))

        def changed(pool: tuple[str, str]) -> None:
            loop.call_soon_threadsafe(controller.touch, Key(SERVING_POOL, *pool))

        def learned(profile: str) -> None:
            loop.call_soon_threadsafe(controller.touch, Key(HARDWARE_PROFILE, None, profile))

        learner = Learner(cluster, lessons, learned, namespaces=settings.namespaces)
        collector = Collector(cluster, board, changed, namespaces=settings.namespaces)
        controller.beside(learner.rounds())
        controller.beside(collector.rounds())
        controller.beside(
            Scaler(
                cluster,
                board,
                helm,
                changed,
                told=metrics.decided,
                rehearsed=metrics.rehearsed,
                namespaces=settings.namespaces,
                lessons=lessons,
            )
        )
        return controller

    def make_election() -> Election | None:
        if settings.lease is None:
            return None
        cluster = Cluster(timeout_s=_LEASE_CALL_S, connections=1, retries=False)
        namespace, name = settings.lease
        # Two processes of one pod are two candidates: the first may still end while the second one begins.
        me = f"{socket.gethostname()}_{secrets.token_hex(4)}"
        return Election(cluster, namespace, name, me, clock=time.monotonic, now=_micro_time)

    asyncio.run(
        kopf.operator(
            registry=registry_for(make_controller, make_election),
            settings=kopf_settings(settings),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
        )
    )


def configure_logs(level: str, log_format: LogFormat) -> None:
    """One line per event on stderr. kopf's chatter about watching, and a line for each question to a gateway, are kept
    for `debug`."""
    debug = level == "debug"
    kopf.configure(debug=debug, log_format=kopf.LogFormat.JSON if log_format == "json" else kopf.LogFormat.FULL)
    logging.getLogger().setLevel(level.upper())
    if not debug:
        for name in ("kopf.objects", "kopf.activities", "asyncio", "aiohttp.access", "urllib3", "httpx"):
            logging.getLogger(name).setLevel(logging.WARNING)


def _token() -> str:
    return secrets.token_hex(_TOKEN_BYTES)


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
