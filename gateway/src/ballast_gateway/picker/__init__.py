"""The picker face: an Envoy ext_proc server that picks the endpoint of each request.

`messages` are the values on the stream, `exchange` the protocol (pure: no I/O), `face` the stream's session with the
Director, `codec` protobuf, `grpc_transport` the server. Only `codec` and `grpc_transport` know protobuf and gRPC, so
that a leaner transport can take their place.
"""

from ballast_gateway.picker.server import PickerServer, serve

__all__ = ["PickerServer", "serve"]
