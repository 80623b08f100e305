"""What a picker has said on one stream, read as a proxy reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from envoy.config.core.v3 import base_pb2

from ballast_conformance import protocol
from ballast_conformance.grpc_call import End

_KEEPS: Final = base_pb2.HeaderValueOption.HeaderAppendAction.ADD_IF_ABSENT


class Transcript:
    """The replies of one stream, in order."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.end: End | None = None
        """How the stream ended, if it has."""
        self.silent_s: float | None = None
        """The picker said nothing for so long, although something was due."""

    def kinds(self) -> list[str]:
        """What each reply is: protobuf's field names."""
        return [reply.WhichOneof("response") or "nothing" for reply in self.replies]

    def of(self, kind: str) -> list[Any]:
        """The contents of the replies of one kind."""
        return [getattr(reply, kind) for reply in self.replies if reply.WhichOneof("response") == kind]

    # --- where the request goes ---------------------------------------------------------------------------------

    def set_headers(self, name: str) -> list[Any]:
        """The `HeaderValueOption`s of one name in what answers the request."""
        found = []
        for kind in ("request_headers", "request_body"):
            for part in self.of(kind):
                options = part.response.header_mutation.set_headers
                found += [option for option in options if option.header.key.lower() == name]
        return found

    def removed_headers(self) -> set[str]:
        """Names of headers that the picker takes out of the request."""
        parts = self.of("request_headers") + self.of("request_body")
        return {name.lower() for part in parts for name in part.response.header_mutation.remove_headers}

    def header(self, name: str) -> str | None:
        """What the picker sets a header of the request to; None if it does not."""
        options = self.set_headers(name)
        return None if not options else text_of(options[-1].header)

    @property
    def in_header(self) -> str | None:
        """The destination in the header."""
        return self.header(protocol.DESTINATION)

    @property
    def in_metadata(self) -> str | None:
        """The destination in the dynamic metadata."""
        found = None
        for reply in self.replies:
            namespaces = reply.dynamic_metadata.fields
            if protocol.NAMESPACE in namespaces:
                fields = namespaces[protocol.NAMESPACE].struct_value.fields
                if protocol.DESTINATION in fields:
                    found = str(fields[protocol.DESTINATION].string_value)
        return found

    @property
    def destination(self) -> str | None:
        """As told in either way."""
        return self.in_header or self.in_metadata

    @property
    def endpoints(self) -> list[str]:
        """The destination and its fall-backs."""
        return [entry.strip() for entry in (self.destination or "").split(",") if entry.strip()]

    def overwrites(self, name: str) -> bool:
        """Whether a header of that name that a client sent is surely gone."""
        return bool(self.set_headers(name)) and not any(_appends(option) for option in self.set_headers(name))

    # --- refusals -----------------------------------------------------------------------------------------------

    @property
    def immediate(self) -> Any | None:
        """The picker's own answer to the client."""
        found = self.of("immediate_response")
        return found[0] if found else None

    @property
    def status(self) -> int | None:
        """Of the picker's own answer to the client."""
        return None if self.immediate is None else int(self.immediate.status.code)

    # --- bodies -------------------------------------------------------------------------------------------------

    def streamed(self, kind: str) -> list[Any]:
        """The `StreamedBodyResponse`s of one body."""
        mutations = [part.response.body_mutation for part in self.of(kind)]
        return [each.streamed_response for each in mutations if each.WhichOneof("mutation") == "streamed_response"]

    def body(self, kind: str) -> bytes:
        """A body as it is forwarded in full duplex."""
        return b"".join(chunk.body for chunk in self.streamed(kind))

    def ended(self, kind: str) -> bool:
        """Whether a body's last chunk has come."""
        return any(chunk.end_of_stream or chunk.end_of_stream_without_message for chunk in self.streamed(kind))

    # --- for people ---------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        said = ", ".join(self._folded()) or "no reply"
        if self.end is not None:
            said += f", then the end: {self.end}"
        elif self.silent_s is not None:
            said += f", then nothing for {self.silent_s:g} s"
        return said

    def _folded(self) -> list[str]:
        out: list[str] = []
        count = 0
        for kind in self.kinds():
            shown = f"immediate_response {self.status}" if kind == "immediate_response" else kind
            if out and (out[-1] == shown or out[-1].startswith(f"{shown} x")):
                count += 1
                out[-1] = f"{shown} x{count}"
            else:
                out.append(shown)
                count = 1
        return out


Condition = Callable[[Transcript], bool]


def request_answered(transcript: Transcript) -> bool:
    """The request's half of a full-duplex exchange is over: headers, and all of the body."""
    if transcript.immediate is not None:
        return True
    return transcript.ended("request_body") and bool(transcript.of("request_headers"))


def trailers_answered(transcript: Transcript) -> bool:
    """The same, of a request that ended with trailers."""
    if transcript.immediate is not None:
        return True
    return bool(transcript.of("request_trailers")) and bool(transcript.of("request_headers"))


def headers_answered(transcript: Transcript) -> bool:
    """The request's headers have an answer."""
    return transcript.immediate is not None or bool(transcript.of("request_headers"))


def text_of(header: Any) -> str:
    """The value of a `HeaderValue`, in whichever of its fields."""
    return bytes(header.raw_value).decode("latin-1") or str(header.value)


def _appends(option: Any) -> bool:
    """Whether a header that is there stays. Where a picker sets neither field, ext_proc's default is to overwrite."""
    return bool(option.append.value) or option.append_action == _KEEPS
