"""The pod agent: the proxy face's stream holder in an engine's pod, with a picker's plan in place of the Director.

It is small on purpose: no numpy, no pydantic, no web framework (docs/agent.md).
"""
