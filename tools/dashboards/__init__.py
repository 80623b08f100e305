"""Grafana dashboards and Prometheus rules, built from code into `charts/ballast`: `python -m dashboards [--check]`.

Each panel says what is good, what is bad and what to do. Expressions use metrics of `ballast_api.metrics` and the
recording rules of `dashboards.recordings` only, which a test checks.
"""
