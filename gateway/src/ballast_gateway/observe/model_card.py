"""What an engine says of its models at `GET /v1/models` (vLLM `entrypoints/openai/models`)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of an answer: some 8,000 adapters."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The models of one engine."""

    names: tuple[str, ...] = ()
    """The names that it answers to; empty if it does not say."""
    adapters: frozenset[str] = frozenset()
    """Those of the names that are LoRA adapters: they have a `parent`."""
    max_model_len: int | None = None
    """Tokens of prompt and output together, at most; None if it does not say."""
    roots: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The weights behind each name: the path or name that they were loaded from, where it says."""


UNKNOWN = ModelCard()


def read_card(body: bytes, served: Collection[str]) -> ModelCard:
    """The first model that clients may ask for, else the engine's first; `UNKNOWN` if this is no list."""
    try:
        found = json.loads(body)["data"]
        models = {model["id"]: model.get("max_model_len") for model in found if isinstance(model["id"], str)}
        adapters = frozenset(model["id"] for model in found if model["id"] in models and model.get("parent"))
        said = {model["id"]: model.get("root") for model in found if model["id"] in models}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return UNKNOWN
    names = tuple(models)
    name = next((each for each in served if each in models), names[0] if names else "")
    length = models.get(name)
    roots = {name: root for name, root in said.items() if isinstance(root, str)}
    return ModelCard(names, adapters, length if type(length) is int and length > 0 else None, roots)
