"""The Kubernetes operator: kopf handlers (thin) -> gather -> plan (pure) -> apply.

`handlers` turns watch events into keys on a work queue, `reconcile` takes one key at a time: `gather` reads the
cluster into a frozen `Input`, `plan` says what must exist and what the status is, `apply` writes the difference.
`plan` and `specs` know no Kubernetes client, clock or event loop. Only `cluster` speaks to the API server.
"""
