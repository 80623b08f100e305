"""The Kubernetes operator: kopf handlers (thin) -> gather -> plan (pure) -> apply."""
