"""The picker's question to the Director about one request, and how it is read from the body."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Self, TypeAlias

from ballast_core.attainment import Objective
from ballast_gateway import errors, lax, openai_body, paths
from ballast_gateway.errors import ApiError
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.prompts import NO_FACTS, PromptFacts, PromptReader
from ballast_gateway.tenants import Tenant

_BYTES_PER_TOKEN = 5
"""Estimate for a body that the picker does not see; counts JSON's own characters too."""

_PROMPT_FIELDS: Final = {paths.CHAT: openai_body.CHAT_PROMPT, paths.COMPLETIONS: openai_body.COMPLETION_PROMPT}


Carries: TypeAlias = Callable[[str, JsonObject], tuple[bool, bool]]
"""Of a path and a body without control fields: whether its holder could move its decode, and cut its prompt."""


class InvalidRequest(Exception):
    """The request cannot be placed; the client gets `answer`."""

    def __init__(self, answer: ApiError) -> None:
        super().__init__(answer.for_log)
        self.answer = answer


class BodyFacts(NamedTuple):
    """What placement needs of a body. The defaults are those of a request without one."""

    model: str = ""
    prompt_tokens: int = 0
    max_output_tokens: int | None = None
    stream: bool = False
    priority: int | None = None
    """None where it has none, or where no client is trusted with it."""
    prompt: PromptFacts = NO_FACTS
    cleaned: bytes | None = None
    """The body to forward, if fields had to be taken out."""
    movable: bool = False
    """Whether a holder could move its decode."""
    divisible: bool = False
    """Whether a holder could have its prompt cut."""

    @classmethod
    def unseen(cls, length: int | None) -> Self:
        """Facts of a body that the proxy does not show in full: `length`, in bytes, bounds the prompt."""
        return cls(prompt_tokens=(length or 0) // _BYTES_PER_TOKEN)


class Query(NamedTuple):
    """One question to the Director."""

    request_id: str | None
    """The client's or the proxy's `x-request-id`."""
    subset: tuple[str, ...] | None
    body: BodyFacts
    tenant: str = ""
    key_of: Tenant | None = None
    """Whose key it has, where keys are checked; `tenant` is its name then."""
    priority: int = 0
    objective: Objective | None = None
    """Of its class."""


def _refused(error: openai_body.InvalidBody) -> InvalidRequest:
    return InvalidRequest(errors.invalid_request(str(error), param=error.param, quoteless=error.problem))


def read_body(
    body: bytes,
    *,
    path: str,
    content_type: str,
    content_encoding: str,
    served_models: Collection[str],
    default_model: str = "",
    prompts: PromptReader | None = None,
    objective: str = "",
    dropped: frozenset[str] = openai_body.CONTROL_FIELDS,
    carries: Carries | None = None,
) -> BodyFacts:
    """The facts of a whole body. One that generates and names no model is for the default one, if there is one.

    Raises `InvalidRequest` if it is to be JSON, by its path or type, and is none, or is compressed: engines look at
    neither header nor doubled names, so it would reach them with fields that are taken out. Uploads pass unread, and on
    paths that settings add whatever is not said to be JSON.
    """
    bare_path = path.partition("?")[0]
    generates = openai_body.is_json_path(path)
    kind = content_type.partition(";")[0].strip().lower()
    wants_json = generates or bare_path in paths.JSON or kind == "application/json" or kind.endswith("+json")
    if not wants_json and kind:
        return BodyFacts.unseen(len(body))
    if content_encoding.strip().lower() not in ("", "identity"):
        if wants_json:
            raise InvalidRequest(errors.body_encoded())
        return BodyFacts.unseen(len(body))
    try:
        document = openai_body.parse_object(body)
        model = openai_body.model_of(document, default_model) if generates or document.get("model") else ""
    except openai_body.InvalidBody as error:
        if wants_json:
            raise _refused(error) from None
        return BodyFacts.unseen(len(body))
    if model and served_models and model not in served_models:
        raise InvalidRequest(errors.model_not_found(model, served_models))
    cleaned = openai_body.without_control_fields(document, dropped)
    read = lax.plain(document, chat=True) or document
    if bare_path == paths.RESPONSES:
        try:
            if not openai_body.keeps_nothing(read):
                cleaned = (document if cleaned is None else cleaned) | {"store": False}
        except openai_body.InvalidBody as error:
            raise _refused(error) from None
    movable, divisible = (False, False) if carries is None else carries(path, document if cleaned is None else cleaned)
    return BodyFacts(
        model=model,
        prompt_tokens=openai_body.prompt_tokens(document, _PROMPT_FIELDS.get(bare_path, openai_body.PROMPTS)),
        max_output_tokens=openai_body.max_output_tokens(read, bare_path),
        stream=read.get("stream") is True,
        priority=None if "priority" in dropped else openai_body.priority(read),
        prompt=NO_FACTS if prompts is None else prompts.read(document, model=model, objective=objective),
        cleaned=None if cleaned is None else openai_body.dump(cleaned),
        movable=movable,
        divisible=divisible,
    )
