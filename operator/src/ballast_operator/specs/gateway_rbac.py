"""The gateway's identity and rights: it watches the pods of its namespace, and holds one Lease with its peers."""

from __future__ import annotations

from ballast_api import names
from ballast_operator.kinds import LEASE, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Manifest
from ballast_operator.specs.meta import Owner, child


def gateway_service_account(owner: Owner) -> Manifest:
    """The identity of the gateway's pods."""
    name = names.gateway_object_name(owner.name)
    return child(SERVICE_ACCOUNT, owner, name, "gateway", automountServiceAccountToken=False)


def gateway_role(owner: Owner) -> Manifest:
    """Read pods of the namespace, and lead its peers by one Lease."""
    name = names.gateway_object_name(owner.name)
    lease = {"apiGroups": [LEASE.group], "resources": [LEASE.plural], "resourceNames": [name]}
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {**lease, "verbs": ["get", "update", "patch"]},
    ]
    return child(ROLE, owner, name, "gateway", rules=rules)


def gateway_lease(owner: Owner) -> Manifest:
    """What the gateways lead by. They fill it in; made here it goes with the ServingPool, and they need make none."""
    return child(LEASE, owner, names.gateway_object_name(owner.name), "gateway")


def gateway_role_binding(owner: Owner) -> Manifest:
    """Give the Role to the ServiceAccount."""
    name = names.gateway_object_name(owner.name)
    return child(
        ROLE_BINDING,
        owner,
        name,
        "gateway",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
    )
