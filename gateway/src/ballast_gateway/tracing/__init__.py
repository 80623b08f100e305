"""OpenTelemetry traces of requests: `exporting` samples them and sends what `ballast_gateway.spans` keeps.

Only `exporting` knows OpenTelemetry; it is imported where `tracing` of the settings asks for it.
"""
