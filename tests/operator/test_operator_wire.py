"""The reconciler with its real client over HTTP does what it does against the store: the two are the same API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kubernetes import client

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.cluster import Cluster
from ballast_operator.kinds import GATEWAY, OPTIONAL_CHILDREN
from ballast_operator.reconcile import Reconciler
from ballast_operator.settings import OperatorSettings
from tests.support.object_store import UNAVAILABLE, ObjectStore
from tests.support.operator_builders import (
    DEFAULTS,
    FRESH_TOKEN,
    FRONT,
    NAMESPACE,
    NOW,
    pool,
    reconciler,
    referred,
    serving_pool,
    stored_condition,
    with_all_references,
)
from tests.support.store_server import served


def store() -> ObjectStore:
    return ObjectStore(with_all_references(), FRONT, *referred(), optional=(*OPTIONAL_CHILDREN, GATEWAY))


@contextmanager
def over_http(store: ObjectStore) -> Iterator[Reconciler]:
    """A reconciler whose cluster is the store behind HTTP."""
    with served(store) as url:
        client.Configuration.set_default(client.Configuration(host=url))
        cluster = Cluster(timeout_s=5.0, connections=1)
        try:
            yield Reconciler(cluster, store, OperatorSettings(gateway=DEFAULTS), lambda: NOW, lambda: FRESH_TOKEN)
        finally:
            client.Configuration.set_default(None)


def test_looks_over_http_end_in_the_state_of_looks_at_the_store() -> None:
    """From nothing, after an edit that prunes, and in a settled state, where no write is due."""
    direct, remote = store(), store()
    with over_http(remote) as operator:
        for _ in range(2):
            operator.serving_pool(NAMESPACE, "chat")
            reconciler(direct).serving_pool(NAMESPACE, "chat")
        assert remote.state() == direct.state()
        for each in (direct, remote):
            status = each.objects["ServingPool", NAMESPACE, "chat"]["status"]
            each.put(serving_pool(pool("all", "Flexible"), generation=2, status=status))
        for _ in range(2):
            operator.serving_pool(NAMESPACE, "chat")
            reconciler(direct).serving_pool(NAMESPACE, "chat")
        assert remote.state() == direct.state()
        assert remote.writes == direct.writes
        assert ("Deployment", NAMESPACE, "chat-decode") not in remote.state()
        before = len(remote.writes)
        operator.serving_pool(NAMESPACE, "chat")
        assert remote.writes[before:] == []


def test_a_refusal_over_http_reaches_the_status_and_a_transient_one_the_caller() -> None:
    """With Kubernetes' own message."""
    remote = store()
    remote.refuse = {"Deployment chat-decode": ApiFailure(422, "Invalid", "spec.template.spec.volumes[2]: Required")}
    with over_http(remote) as operator:
        assert operator.serving_pool(NAMESPACE, "chat").failed
        message = stored_condition(remote, "Degraded")["message"]
        assert "Deployment chat-decode: spec.template.spec.volumes[2]: Required" in message
        remote.refuse = {}
        remote.interrupt(UNAVAILABLE, after=0)
        with pytest.raises(ApiFailure, match="etcd leader changed") as caught:
            operator.serving_pool(NAMESPACE, "chat")
        assert caught.value.transient
        assert not operator.serving_pool(NAMESPACE, "chat").failed
