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
    """Read pods of the namespace, and lead its peers by the Lease of its own name.

    A right to create cannot be bound to a name: Kubernetes knows none yet when it judges.
    """
    name, leases = names.gateway_object_name(owner.name), {"apiGroups": [LEASE.group], "resources": [LEASE.plural]}
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {**leases, "verbs": ["create"]},
        {**leases, "resourceNames": [name], "verbs": ["get", "update"]},
    ]
    return child(ROLE, owner, name, "gateway", rules=rules)


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
