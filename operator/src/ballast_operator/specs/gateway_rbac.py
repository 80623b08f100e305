"""The gateway's identity and rights: it watches the pods of its namespace, nothing else."""

from __future__ import annotations

from ballast_api import names
from ballast_operator.kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Manifest
from ballast_operator.specs.meta import Owner, child


def gateway_service_account(owner: Owner) -> Manifest:
    """The identity of the gateway's pods."""
    name = names.gateway_object_name(owner.name)
    return child(SERVICE_ACCOUNT, owner, name, "gateway", automountServiceAccountToken=False)


def gateway_role(owner: Owner) -> Manifest:
    """Read pods of the namespace."""
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    return child(ROLE, owner, names.gateway_object_name(owner.name), "gateway", rules=rules)


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
