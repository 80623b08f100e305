"""Rules across the fields of a ServingPool: CEL for the API server, a predicate for pydantic, one message.

CEL's cost is bounded by the lists' maxItems, so every list that a rule walks has one.
"""

from __future__ import annotations

import re
from typing import Any

from ballast_api.common import MAX_INT, Rule
from ballast_api.names import GATEWAY_POOL_SEGMENT, PORT_ENGINE_BEHIND_AGENT, PORT_MASTER, PORT_NIXL, PORT_POD_API
from ballast_api.wire_names import MODEL_NAME

_PERCENT = re.compile(r"^(100|[1-9]?[0-9])%$")


def autoscaling_rules() -> tuple[Rule, ...]:
    """Rules of `autoscaling`."""
    return (
        Rule(
            field="minReplicas",
            cel="self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be above maxReplicas",
            holds=lambda self: self.min_replicas <= self.max_replicas,
        ),
    )


def pool_rules() -> tuple[Rule, ...]:
    """Rules of one pool."""
    return (
        Rule(
            field="replicas",
            cel="has(self.replicas) != has(self.autoscaling)",
            message="set exactly one of replicas and autoscaling",
            holds=lambda self: (self.replicas is None) != (self.autoscaling is None),
        ),
        Rule(
            field="name",
            cel=f"self.name != '{GATEWAY_POOL_SEGMENT}'",
            message=f"the name {GATEWAY_POOL_SEGMENT} is taken by the gateway's own objects; choose another",
            holds=lambda self: self.name != GATEWAY_POOL_SEGMENT,
        ),
    )


def model_volume_rules() -> tuple[Rule, ...]:
    """Rules of `model.volume`."""
    return (
        Rule(
            field="claim",
            cel="[has(self.claim), has(self.image), has(self.cache)].filter(each, each).size() == 1",
            message="set exactly one of claim, image and cache",
            holds=lambda self: sum(each is not None for each in (self.claim, self.image, self.cache)) == 1,
        ),
    )


def ratio_rules() -> tuple[Rule, ...]:
    """Rules of `ratio`."""
    return (
        Rule(
            field="minRatio",
            cel="!has(self.minRatio) || !has(self.maxRatio) || self.minRatio <= self.maxRatio",
            message="minRatio must not be above maxRatio",
            holds=lambda self: self.min_ratio is None or self.max_ratio is None or self.min_ratio <= self.max_ratio,
        ),
    )


def rollout_rules() -> tuple[Rule, ...]:
    """Rules of `rollout`."""
    return (
        *(_int_or_percent(field, attribute) for field, attribute in _ROLLOUT_FIELDS),
        Rule(
            field="maxSurge",
            cel="!(self.maxSurge in [dyn(0), dyn('0%')] && self.maxUnavailable in [dyn(0), dyn('0%')])",
            message="maxSurge and maxUnavailable cannot both be 0: no pod could ever be replaced",
            holds=lambda self: not (self.max_surge in (0, "0%") and self.max_unavailable in (0, "0%")),
        ),
    )


_ROLLOUT_FIELDS = (("maxSurge", "max_surge"), ("maxUnavailable", "max_unavailable"))


def _int_or_percent(field: str, attribute: str) -> Rule:
    def holds(self: object) -> bool:
        value = getattr(self, attribute)
        return 0 <= value <= MAX_INT if isinstance(value, int) else _PERCENT.match(value) is not None

    return Rule(
        field=field,
        cel=f"type(self.{field}) == int ? self.{field} >= 0 && self.{field} <= {MAX_INT} : "
        f"self.{field}.matches('{_PERCENT.pattern}')",
        message=f"{field} must be a number, 0 or more and {MAX_INT} or less, or a percentage from 0% to 100%",
        holds=holds,
    )


def route_match_rules() -> tuple[Rule, ...]:
    """Rules of `gateway.match`."""
    return (
        Rule(
            field="headers",
            cel=f"!self.byModel || !has(self.headers) || !self.headers.exists(h, h.name == '{MODEL_NAME}')",
            message=f"byModel asks for {MODEL_NAME} itself: leave that header out, or set byModel to false",
            holds=lambda self: not self.by_model or all(each.name != MODEL_NAME for each in self.headers),
        ),
    )


def gateway_spec_rules() -> tuple[Rule, ...]:
    """Rules within a gateway."""
    return tuple(_optional_tls(face) for face in ("proxy", "picker"))


def _optional_tls(face: str) -> Rule:
    at = f"self.settings.tls.{face}.mode"
    return Rule(
        field=f"settings.tls.{face}.mode",
        cel="!has(self.parentRefs) || self.parentRefs.size() == 0 || !has(self.settings) || !has(self.settings.tls) || "
        f"!has(self.settings.tls.{face}) || !has({at}) || {at} != 'Required'",
        message="the routes that parentRefs asks for speak plaintext to the gateway: set Optional, or write your own",
        holds=lambda self: (
            not (self.parent_refs and self.settings is not None and getattr(self.settings.tls, face).mode == "Required")
        ),
    )


def serving_pool_spec_rules() -> tuple[Rule, ...]:
    """Rules across pools."""
    return (
        Rule(
            field="pools",
            cel="self.pools.exists(p, p.role in ['Prefill', 'Flexible'])",
            message="no pool can prefill; add a pool with role Prefill or Flexible",
            holds=lambda self: any(pool.role in ("Prefill", "Flexible") for pool in self.pools),
        ),
        Rule(
            field="pools",
            cel="self.pools.exists(p, p.role in ['Decode', 'Flexible'])",
            message="no pool can decode; add a pool with role Decode or Flexible",
            holds=lambda self: any(pool.role in ("Decode", "Flexible") for pool in self.pools),
        ),
        Rule(
            field="ratio.scaleToZeroAfterS",
            cel=(
                "!has(self.ratio.scaleToZeroAfterS) || self.pools.all(p, has(p.autoscaling) && "
                "p.autoscaling.minReplicas == 0 && p.autoscaling.by == 'Ballast')"
            ),
            message="scaling to zero needs autoscaling with minReplicas 0, by Ballast, in every pool",
            holds=lambda self: (
                self.ratio.scale_to_zero_after_s is None
                or all(
                    p.autoscaling and not p.autoscaling.min_replicas and p.autoscaling.by == "Ballast"
                    for p in self.pools
                )
            ),
        ),
        Rule(
            field="pools",
            cel=(
                "has(self.ratio.scaleToZeroAfterS) || !self.pools.exists(p, has(p.autoscaling) && "
                "p.autoscaling.minReplicas == 0 && p.autoscaling.by == 'Ballast')"
            ),
            message="minReplicas 0 needs ratio.scaleToZeroAfterS, or autoscaling by External",
            holds=lambda self: (
                self.ratio.scale_to_zero_after_s is not None
                or not any(
                    p.autoscaling and not p.autoscaling.min_replicas and p.autoscaling.by == "Ballast"
                    for p in self.pools
                )
            ),
        ),
        Rule(
            field="sloRefs",
            cel="!has(self.sloRef) || !has(self.sloRefs) || self.sloRefs.size() == 0",
            message="set one of sloRef and sloRefs, not both",
            holds=lambda self: self.slo_ref is None or not self.slo_refs,
        ),
        Rule(
            field="engine.port",
            cel=f"self.engine.agent == 'Never' || self.gateway.face == 'Proxy' || self.engine.port != {PORT_POD_API}",
            message=f"port {PORT_POD_API} is the agent's own in pods behind the picker face; choose another",
            holds=lambda self: self.engine.port != PORT_POD_API or not self.has_agents,
        ),
        Rule(
            field="engine.port",
            cel=f"self.engine.port != {PORT_NIXL}",
            message=f"port {PORT_NIXL} is NIXL's own in engine pods; choose another",
            holds=lambda self: self.engine.port != PORT_NIXL,
        ),
        Rule(
            field="engine.port",
            cel=f"self.engine.port != {PORT_MASTER} || !self.pools.exists(p, p.nodesPerInstance > 1)",
            message=f"at port {PORT_MASTER} the nodes of one instance meet; choose another",
            holds=lambda self: self.engine.port != PORT_MASTER or not _spans_nodes(self),
        ),
        *(_free_for_kv_events(field, attribute) for field, attribute in _KV_EVENTS_FIELDS),
        Rule(
            field="gpuBudget",
            cel=(
                "!has(self.gpuBudget) || self.pools.map(p, "
                "(has(p.replicas) ? p.replicas : has(p.autoscaling) ? p.autoscaling.minReplicas : 0)"
                " * (has(p.tensorParallelSize) ? p.tensorParallelSize : 1) * p.nodesPerInstance).sum()"
                " <= self.gpuBudget"
            ),
            message="gpuBudget is below what the pools' replicas need at least; raise it or lower replicas",
            holds=lambda self: self.gpu_budget is None or self.least_gpus <= self.gpu_budget,
        ),
    )


_KV_EVENTS_FIELDS = (("port", "port"), ("replayPort", "replay_port"))


def _free_for_kv_events(field: str, attribute: str) -> Rule:
    """Nothing else in an engine's pod listens on the ports of this field, one for each rank."""

    def holds(self: Any) -> bool:
        settings = self.gateway.settings
        if settings is None or not settings.kv_events.enabled:
            return True
        taken = {self.engine.port, PORT_NIXL}
        if self.has_agents:
            taken |= {PORT_POD_API, self.engine.port_behind_agent}
        if _spans_nodes(self):
            taken.add(PORT_MASTER)
        first = getattr(settings.kv_events, attribute)
        return taken.isdisjoint(range(first, first + settings.kv_events.ranks))

    events = "self.gateway.settings.kvEvents"
    free = f"all(p, p < {events}.{field} || p >= {events}.{field} + {events}.ranks)"
    usual = PORT_ENGINE_BEHIND_AGENT
    return Rule(
        field=f"gateway.settings.kvEvents.{field}",
        cel=f"!has(self.gateway.settings) || !has({events}) || !{events}.enabled || "
        f"([self.engine.port, {PORT_NIXL}].{free} && (self.engine.agent == 'Never' || self.gateway.face == 'Proxy' || "
        f"[{PORT_POD_API}, self.engine.port == {usual} ? {usual + 1} : {usual}].{free}) && "
        f"(!self.pools.exists(p, p.nodesPerInstance > 1) || [{PORT_MASTER}].{free}))",
        message=f"in engine pods engine.port, {PORT_NIXL} (NIXL), with agents {PORT_POD_API} and {usual} "
        f"({usual + 1} if engine.port is {usual}), and with nodesPerInstance above 1 {PORT_MASTER} are taken; choose "
        "another",
        holds=holds,
    )


def _spans_nodes(self: Any) -> bool:
    """Whether instances of a pool have several nodes, which meet at a port of the first one."""
    return any(pool.nodes_per_instance > 1 for pool in self.pools)
