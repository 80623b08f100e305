"""The words of the core: values, events and effects, segments and traces. Immutable, without behaviour of their own.

The lowest room of the core: it imports numpy's array types and nothing else of ours.
"""

from ballast_core.model.endpoints import STAGE_ROLES, Endpoint, EndpointId, Observation, Role, Stage
from ballast_core.model.requests import Binding, Outcome, RejectReason, Request, RequestId

__all__ = [
    "STAGE_ROLES",
    "Binding",
    "Endpoint",
    "EndpointId",
    "Observation",
    "Outcome",
    "RejectReason",
    "Request",
    "RequestId",
    "Role",
    "Stage",
]
