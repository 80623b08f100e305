"""Custom resources and gateway settings as pydantic models: the one hand-written schema.

CRDs, chart templates, `values.schema.json` and the reference docs are generated from here (`make generate`).
Knows nothing of Kubernetes clients, event loops or files other than its own output.
"""
