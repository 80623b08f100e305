"""The vocabulary of the core: requests, endpoints, events, effects, segments and traces. Immutable values.

The lowest layer of the core: of the other packages it imports only the array types.
"""

from ballast_core.model.endpoints import STAGE_ROLES, Endpoint, EndpointId, Observation, Role, Stage
from ballast_core.model.faults import Fault
from ballast_core.model.requests import Binding, Outcome, RejectReason, Request, RequestId, ShedCause

__all__ = [
    "STAGE_ROLES",
    "Binding",
    "Endpoint",
    "EndpointId",
    "Fault",
    "Observation",
    "Outcome",
    "RejectReason",
    "Request",
    "RequestId",
    "Role",
    "ShedCause",
    "Stage",
]
