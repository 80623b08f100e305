"""NetworkPolicies: the pod API is for this ServingPool's gateways, the admin port of gateways for those whom the
operator's administrator names; every other port stays as open as without them.

A policy that selects a pod closes all that it does not name. What else pods listen on is not known here: connectors
take ports of their own as they need them, and overlays add containers. So all other ports are named, by ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from ballast_api import names
from ballast_operator.kinds import NETWORK_POLICY, Manifest
from ballast_operator.specs.meta import Component, Owner, child, with_spec_hash
from ballast_operator.specs.services import engines_service_name

_LAST_PORT: Final = 65535


def engines_policy(owner: Owner) -> Manifest:
    """For the engines' pods."""
    return _policy(owner, engines_service_name(owner.name), "engine", _engines_of(owner), {})


def gateway_policy(owner: Owner, admin_from: Sequence[Mapping[str, object]]) -> Manifest:
    """For the gateway's pods. `admin_from`: who may reach the admin port, as `from` of a NetworkPolicy has it; empty:
    everybody."""
    match = names.gateway_match_labels(owner.name)
    # Engine pods ask whether they are empty before they end.
    engines: dict[str, object] = {"podSelector": {"matchLabels": _engines_of(owner)}}
    guarded = {names.PORT_ADMIN: [*(dict(each) for each in admin_from), engines]} if admin_from else {}
    return _policy(owner, names.gateway_object_name(owner.name), "gateway", match, guarded)


def _engines_of(owner: Owner) -> dict[str, str]:
    return {names.LABEL_SERVING_POOL: owner.name, names.APP_COMPONENT: "engine"}


def _policy(
    owner: Owner,
    name: str,
    component: Component,
    selector: Mapping[str, str],
    guarded: Mapping[int, list[dict[str, object]]],
) -> Manifest:
    """`guarded`: further ports that are not for everybody, and for whom they are."""
    gateways = [{"podSelector": {"matchLabels": names.gateway_match_labels(owner.name)}}]
    closed = {names.PORT_POD_API: gateways, **guarded}
    edges = [0, *sorted(closed), _LAST_PORT + 1]
    policy = child(
        NETWORK_POLICY,
        owner,
        name,
        component,
        spec={
            "podSelector": {"matchLabels": dict(selector)},
            "policyTypes": ["Ingress"],
            "ingress": [
                *({"from": peers, "ports": [_ports("TCP", port)]} for port, peers in closed.items()),
                {
                    "ports": [
                        *(_ports("TCP", low + 1, high - 1) for low, high in pairwise(edges)),
                        _ports("UDP", 1, _LAST_PORT),
                        _ports("SCTP", 1, _LAST_PORT),
                    ]
                },
            ],
        },
    )
    return with_spec_hash(policy)


def _ports(protocol: str, first: int, last: int | None = None) -> Manifest:
    only = {"protocol": protocol, "port": first}
    return only if last is None else {**only, "endPort": last}
