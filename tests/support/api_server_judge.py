"""What a kube-apiserver says to a mutation, in the words of the table; used by the scenario on a real server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ballast_api.errors import InvalidInput
from ballast_api.loading import parse_resource
from ballast_api.resources import KINDS
from tests.support.api_mutations import MUTATIONS, Mutation
from tests.support.api_objects import ABSENT, every_field

Post = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]
"""Sends a JSON object to a path of the API server (query included); returns status code and decoded answer."""

_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"')


def dry_run_path(kind: str, namespace: str) -> str:
    """Where an object of the kind is created without being kept; unknown fields are refused, as kubectl does."""
    model = KINDS[kind]
    scope = f"namespaces/{namespace}/" if model.namespaced else ""
    return f"/apis/serving.ballast.dev/v1alpha1/{scope}{model.plural}?dryRun=All&fieldValidation=Strict"


def named_fields(answer: dict[str, Any]) -> set[str]:
    """Every field that a refusal names."""
    causes = answer.get("details", {}).get("causes", [])
    return {cause.get("field", "") for cause in causes} | set(_UNKNOWN_FIELD.findall(answer.get("message", "")))


def disagreements(post: Post, *, namespace: str = "default", table: Iterable[Mutation] = MUTATIONS) -> list[str]:
    """A sentence for every mutation that the server judges otherwise than the table. Empty means agreement."""
    return [line for mutation in table for line in _judge(post, mutation, namespace)]


def _judge(post: Post, mutation: Mutation, namespace: str) -> list[str]:
    status, answer = post(dry_run_path(mutation.kind, namespace), mutation.object())
    if mutation.field is None:
        return _judge_accepted(mutation, status, answer)
    if status < 400:
        return [f"{mutation.id}: the server accepts it; the table expects {mutation.field}: {mutation.message}"]
    found = named_fields(answer)
    lines = []
    if mutation.expected_server_field not in found:
        lines.append(f"{mutation.id}: the server names {sorted(found)}, not {mutation.expected_server_field}: {answer}")
    if mutation.server_message not in answer.get("message", ""):
        lines.append(f"{mutation.id}: the server does not say {mutation.server_message!r}: {answer.get('message')}")
    return lines


def _judge_accepted(mutation: Mutation, status: int, answer: dict[str, Any]) -> list[str]:
    if status >= 300:
        return [f"{mutation.id}: the server refuses it: {status} {answer.get('message')}"]
    ours = KINDS[mutation.kind].parse(mutation.object()).dump()["spec"]
    if answer["spec"] != ours:
        return [f"{mutation.id}: defaults differ: server {answer['spec']}, models {ours}"]
    return []


JUNK: tuple[Any, ...] = (
    ABSENT,
    None,
    0,
    1,
    -1,
    1.5,
    2**31,
    2**40,
    "",
    "x",
    "X y",
    "5%",
    True,
    [],
    {},
    [1],
    ["x"],
    {"a": 1},
    [{}],
)
"""Values that some field refuses and another takes."""


def sweep(kind: str) -> Iterator[Mutation]:
    """Every field of a full object of the kind, with every junk value in it."""
    for path in every_field(kind):
        for value in JUNK:
            yield Mutation(f"{kind} {path} = {value!r}", kind, {path: value}, full=True)


def sweep_disagreements(post: Post, *, namespace: str = "default") -> list[str]:
    """A sentence for every swept object that the server and the models judge differently, or default differently."""
    return [line for kind in KINDS for mutation in sweep(kind) for line in _differs(post, mutation, namespace)]


def _differs(post: Post, mutation: Mutation, namespace: str) -> list[str]:
    status, answer = post(dry_run_path(mutation.kind, namespace), mutation.object())
    try:
        ours = parse_resource(mutation.object()).dump()["spec"]
    except InvalidInput as error:
        return [f"{mutation.id}: only the models refuse it: {error}"] if status < 300 else []
    if status >= 300:
        return [f"{mutation.id}: only the server refuses it: {answer.get('message')}"]
    return [] if answer["spec"] == ours else [f"{mutation.id}: server {answer['spec']}, models {ours}"]
