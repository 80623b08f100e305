"""The admin API: endpoints, and "why this pod?". On a port of its own with `probes`, never exposed to clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import StreamingResponse

from ballast_api.recorded_traffic import TRAFFIC
from ballast_core.directing.watch import Watch
from ballast_core.model import EndpointId
from ballast_core.state.health import HealthReport
from ballast_gateway.decisions import DecisionLog
from ballast_gateway.observe.fleet import Fleet, Member
from ballast_gateway.traffic import TrafficRecorder


def build_admin(
    *,
    fleet: Fleet,
    health: Callable[[EndpointId], HealthReport],
    decisions: DecisionLog,
    traffic: TrafficRecorder,
    naming_key: Callable[[str], bytes],
    watch: Watch | None,
    kv_cache: Callable[[EndpointId], dict[str, object] | None] = lambda endpoint_id: None,
    view: Callable[[], dict[str, Any]] | None = None,
    now_s: Callable[[], float],
    settings: Callable[[], dict[str, Any]],
    tenants: Callable[[int], list[dict[str, Any]]] | None = None,
) -> FastAPI:
    """The application. Who may ask is `probes`' to judge."""
    app = FastAPI(title="Ballast gateway admin", docs_url=None, redoc_url=None)

    @app.get("/ballast/v1/endpoints")
    async def endpoints() -> dict[str, Any]:
        """The discovered endpoints, each with its last observation and its health by the outcomes of its legs."""
        members = sorted(fleet.members.values(), key=lambda member: member.endpoint.id)
        return {
            "endpoints": [
                _member(member, health(member.endpoint.id), now_s())
                | _watched(watch, member)
                | _reported(kv_cache(member.endpoint.id))
                for member in members
            ]
        }

    @app.get("/ballast/v1/decisions")
    async def last_decisions(
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100, request_id: str | None = None
    ) -> dict[str, Any]:
        """The newest decisions first, each with the costs of every candidate."""
        return {"decisions": decisions.last(limit, request_id=request_id)}

    @app.get(TRAFFIC)
    async def recorded_traffic(
        minutes: Annotated[float | None, Query(gt=0, le=1e6)] = None,
        limit: Annotated[int | None, Query(ge=1)] = None,
        names: Annotated[str | None, Query(min_length=16, max_length=128)] = None,
    ) -> StreamingResponse:
        """The last minutes' requests as a trace of JSON lines: what `ballast simulate --trace` reads. With `names`, a
        text that nobody else knows, as rows that can be merged with those of other gateways."""
        key = None if names is None else naming_key(names)
        lines = traffic.trace(seconds=None if minutes is None else 60 * minutes, limit=limit, key=key)
        return StreamingResponse(lines, media_type="application/jsonl")

    @app.get("/ballast/v1/settings")
    async def settings_in_force() -> dict[str, Any]:
        """The settings in force, and what became of the settings file's last text."""
        return settings()

    if view is not None:

        @app.get("/ballast/v1/view")
        async def fleet_view() -> dict[str, Any]:
            """Who leads, and every agent and other gateway that is heard, with the age of what it said last."""
            return view()

    if tenants is not None:

        @app.get("/ballast/v1/tenants")
        async def shares(limit: Annotated[int, Query(ge=1, le=10_000)] = 1000) -> dict[str, Any]:
            """What each tenant has in flight, here and at the gateways that are heard, and what is left of its tokens;
            the busiest first."""
            return {"tenants": tenants(limit)}

    return app


def _reported(cache: dict[str, object] | None) -> dict[str, Any]:
    return {} if cache is None else {"kv_cache": cache}


def _watched(watch: Watch | None, member: Member) -> dict[str, Any]:
    if watch is None:
        return {}
    pulse, reason = watch.pulse(member.endpoint.id)
    return {"watch": {"pulse": str(pulse), "reason": reason}}


def _member(member: Member, health: HealthReport, now_s: float) -> dict[str, Any]:
    endpoint, seen = member.endpoint, member.observation
    return {
        "name": endpoint.id,
        "address": endpoint.address,
        "role": str(endpoint.role),
        "pool": endpoint.pool,
        "profile": endpoint.profile,
        "revision": endpoint.revision,
        "state": member.state,
        "failed_scrapes": member.liveness.failures,
        "problem": member.problem,
        "health": asdict(health),
        "observation": None
        if seen is None
        else {
            "age_s": round(now_s - seen.observed_at_s, 6),
            "running": seen.running,
            "waiting": seen.waiting,
            "kv_usage_ratio": seen.kv_usage_ratio,
            "preemptions": seen.preemptions,
        },
    }
