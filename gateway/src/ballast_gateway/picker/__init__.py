"""The picker face: an Envoy ext_proc server that picks the endpoint of each request.

`messages` has the values on the stream, `exchange` the protocol (pure: no I/O), `face` the session of one stream with
the Director, `server` ext_proc and health together. Only `codec` and `health` know protobuf, only `h2_transport` and
`health` know HTTP/2.
"""

from ballast_gateway.picker.server import PickerServer, serve

__all__ = ["PickerServer", "serve"]
