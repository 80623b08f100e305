"""Custom resources and gateway settings as pydantic models: the one hand-written schema.

CRDs, chart templates, `values.schema.json` and the reference docs are generated from here (`make generate`).
Uses no Kubernetes client, no event loop, and no files but its own output.
"""
