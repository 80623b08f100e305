"""The faults that engine-sim can be told to have, as data: what each takes, whom it hits, how JSON says it."""

import json
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Discriminator, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from ballast_api.errors import explain, field_path
from ballast_sim.engine_sim.misbehave.facts import GENERATION, Facts

_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class FaultError(ValueError):
    """Faults that cannot be: one line each, naming the field and the fix."""


def _after(value: object) -> object:
    if value in ("request", "head") or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError(f"must be request, head or a number of tokens (0 or more), not {value!r}")


def _path(value: object) -> object:
    if isinstance(value, str) and value.startswith("/"):
        return value
    raise ValueError(f"must be a path such as /metrics or /v1/*, not {value!r}")


After = Annotated[Literal["request", "head"] | int, PlainValidator(_after)]
"""When a fault strikes: when the request was read, after the answer's head, or in place of output token N + 1."""
Path = Annotated[str, PlainValidator(_path)]
Tokens = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=3600)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Scope:
    """Which requests a fault hits. Of several faults the first one that hits a request gets it."""

    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the requests that all the rest lets through; a die with `seed` decides."""
    seed: int = 0
    requests: Annotated[int, Field(ge=1)] | None = None
    """The next so many requests; None: all."""
    paths: Annotated[tuple[Path, ...], Field(min_length=1)] | None = None
    """Routes; a star at the end stands for anything. None: the fault's own, usually the two that generate."""
    legs: Literal["all", "prefill", "decode"] = "all"
    prompt: Annotated[str, Field(min_length=1)] | None = None
    """Only prompts that contain this text."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class RequestFault:
    """A fault that single requests have."""

    PATHS: ClassVar[tuple[str, ...]] = GENERATION

    scope: Scope = Scope()

    def touches(self, _: Facts) -> bool:
        """What the fault asks of a request beyond its scope."""
        return True


# -- answers in place of the engine's ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class WrongKey(RequestFault):
    """Another API key than the client's: 401."""

    PATHS: ClassVar[tuple[str, ...]] = ("/v1/*",)

    fault: Literal["wrong-key"] = "wrong-key"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class WrongModel(RequestFault):
    """Another served model name: 404."""

    fault: Literal["wrong-model"] = "wrong-model"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class SmallContext(RequestFault):
    """A shorter context: 400 for prompts of more than `tokens`."""

    tokens: Annotated[int, Field(ge=1)]
    fault: Literal["small-context"] = "small-context"

    def touches(self, facts: Facts) -> bool:
        """See `RequestFault.touches`."""
        return len(facts.tokens) > self.tokens


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Status(RequestFault):
    """An error before any byte."""

    status: Literal[400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 501, 502, 503, 504]
    fault: Literal["status"] = "status"


# -- answers that break ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ErrorEvent(RequestFault):
    """200, then an error event in place of token `after` + 1. An answer that is no stream is a 500."""

    after: Tokens = 0
    fault: Literal["error-event"] = "error-event"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Reset(RequestFault):
    """The connection is reset."""

    after: After = "request"
    fault: Literal["reset"] = "reset"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class End(RequestFault):
    """The stream ends as if it were complete, without finish_reason and [DONE]. Other answers end in their middle."""

    after: Tokens = 0
    fault: Literal["end"] = "end"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Hang(RequestFault):
    """Nothing more comes, and the connection stays open."""

    after: After = "request"
    fault: Literal["hang"] = "hang"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Die(RequestFault):
    """The process ends as by kill -9."""

    after: After = "request"
    fault: Literal["die"] = "die"


# -- answers that are wrong --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Garbage(RequestFault):
    """Bytes that no engine should send come before token `after` + 1; then the stream goes on."""

    garbage: Literal["not-json", "broken-token-ids", "huge", "not-sse"]
    """An event that is not JSON; one whose token ids break off; one of 1 MiB; bytes without any event."""
    after: Tokens = 1
    fault: Literal["garbage"] = "garbage"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ContentLength(RequestFault):
    """content-length is wrong by `off_by` bytes, then the connection closes. A stream says 64 bytes and has more."""

    off_by: Annotated[int, Field(ge=-1024, le=1024)] = 16
    fault: Literal["content-length"] = "content-length"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class ChunkFraming(RequestFault):
    """A chunk size that is no number stands before token `after` + 1."""

    after: Tokens = 1
    fault: Literal["chunk-framing"] = "chunk-framing"


# -- answers that are slow ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Trickle(RequestFault):
    """The answer comes `size` bytes at a time with a pause between: all of it, or only the head."""

    pause_s: Seconds = 0.01
    size: Annotated[int, Field(ge=1)] = 1
    part: Literal["all", "head"] = "all"
    fault: Literal["trickle"] = "trickle"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Slow(RequestFault):
    """All that is sent comes `factor` times as long after the request as it should."""

    factor: Annotated[float, Field(ge=1, le=1e6)]
    fault: Literal["slow"] = "slow"


# -- the whole server --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Freeze:
    """The engine stops in the middle of what it does; the API server, with /health and /metrics, lives on."""

    fault: Literal["freeze"] = "freeze"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Flap:
    """Connections are refused for `down_s`, accepted for `up_s`, and so on; `cut` resets present ones, too."""

    down_s: Seconds
    up_s: Seconds
    cut: bool = False
    fault: Literal["flap"] = "flap"


@dataclass(frozen=True, slots=True, kw_only=True, config=_CONFIG)
class Sigterm:
    """After SIGTERM, requests without a first token and new ones, for `linger_s`, get an error event in its place."""

    linger_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    fault: Literal["sigterm"] = "sigterm"


Answering = WrongKey | WrongModel | SmallContext | Status
Breaking = ErrorEvent | Reset | End | Hang | Die
Wrong = Garbage | ContentLength | ChunkFraming
Late = Trickle | Slow
OfRequests = Answering | Breaking | Wrong | Late
Fault = OfRequests | Freeze | Flap | Sigterm

_FAULTS: TypeAdapter[tuple[Fault, ...]] = TypeAdapter(tuple[Annotated[Fault, Discriminator("fault")], ...])
NAMES: tuple[str, ...] = tuple(kind.__dataclass_fields__["fault"].default for kind in get_args(Fault))


def read_faults(text: str | bytes) -> tuple[Fault, ...]:
    """Faults from JSON: one object, or a list of them. Raises FaultError."""
    try:
        value = json.loads(text)
        return _FAULTS.validate_json(json.dumps(value if isinstance(value, list) else [value]))
    except ValidationError as error:
        raise FaultError(_explained(error)) from None
    except (ValueError, RecursionError) as error:
        raise FaultError(f"must be a fault as JSON, or a list of them: {error}") from None


def write_fault(fault: Fault) -> dict[str, Any]:
    """A fault as JSON has it, with every default."""
    (value,) = _FAULTS.dump_python((fault,), mode="json")
    return {"fault": fault.fault, **value}


def _explained(error: ValidationError) -> str:
    problems = explain(error)
    return "\n".join(map(_sentence, error.errors(include_url=False), (problem.message for problem in problems)))


def _sentence(line: ErrorDetails, usual: str) -> str:
    """One problem: the place, and what to do."""
    index, *inner = line["loc"]
    kind, *path = inner or ("",)
    place = field_path(("faults", index, *path))
    match line["type"]:
        case "union_tag_invalid" | "union_tag_not_found":
            return f"{place}.fault: must be one of {', '.join(NAMES)}"
        case "dict_type" | "dataclass_type":
            return f"{place}: must be an object"
        case "unexpected_keyword_argument":
            return f"{place}: is no field of {kind}; check the spelling or remove it"
        case "value_error":
            return f"{place}: {line['ctx']['error']}"
    return f"{place}: {usual}"
