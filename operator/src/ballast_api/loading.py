"""Reading manifests and settings: YAML text to models, with errors that name file, object, field and fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml
from pydantic import ValidationError

from ballast_api.common import API_VERSION, GROUP, ApiModel
from ballast_api.engine_pool import EnginePool
from ballast_api.errors import InvalidInput, Problem, explain
from ballast_api.gateway_files import EndpointsFile, KeysFile
from ballast_api.gateway_settings import GatewaySettings
from ballast_api.resources import KINDS, AnyResource

ModelT = TypeVar("ModelT", bound=ApiModel)


def load_manifest(text: str, *, source: str = "") -> tuple[AnyResource, ...]:
    """Every Ballast resource of a YAML text with any number of documents; `kind: List` is unfolded.

    Objects of other groups (a Namespace beside a ServingPool) are skipped, and EnginePools, which the operator makes.
    Raises `InvalidInput` with all problems of all objects. `source` names the file in messages.
    """
    resources: list[AnyResource] = []
    problems: list[Problem] = []
    for index, document in enumerate(_documents(text, source)):
        try:
            resources.extend(_resources(document))
        except InvalidInput as error:
            where = error.where or f"document {index + 1}"
            problems += [Problem(f"{where}: {p.field}" if p.field else where, p.message) for p in error.problems]
    if problems:
        raise InvalidInput(source, problems)
    return tuple(resources)


def load_documents(text: str, *, source: str = "") -> tuple[Any, ...]:
    """Every document of a YAML text, of any kind, as plain data. Raises `InvalidInput`."""
    return tuple(_documents(text, source))


def load_manifest_files(*paths: Path) -> tuple[AnyResource, ...]:
    """`load_manifest` of files, and of the `*.yaml` and `*.yml` of folders, in the order of their names."""
    resources: list[AnyResource] = []
    for path in _files(paths):
        resources.extend(load_manifest(_read(path), source=str(path)))
    return tuple(resources)


def parse_resource(value: object) -> AnyResource:
    """The model of one object, as the API server or a manifest gives it. Raises `InvalidInput`."""
    if not isinstance(value, Mapping):
        raise InvalidInput("", [Problem("", "must be a mapping with apiVersion, kind, metadata and spec")])
    kind, api_version = value.get("kind"), value.get("apiVersion")
    where = _name_of(value)
    if api_version != API_VERSION:
        raise InvalidInput(where, [Problem("apiVersion", f"must be {API_VERSION}, not {api_version!r}")])
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidInput(where, [Problem("kind", f"{kind!r} is none of {', '.join(sorted(KINDS))}")])
    return _parse(KINDS[kind], value, where)


def load_settings(path: Path) -> GatewaySettings:
    """The gateway's settings file. Raises `InvalidInput`."""
    return parse_settings(_read(path), source=str(path))


def parse_settings(text: str, *, source: str = "") -> GatewaySettings:
    """The gateway's settings from YAML text. Raises `InvalidInput`."""
    return _parse(GatewaySettings, _single(text, source), source)


def load_endpoints(path: Path) -> EndpointsFile:
    """An endpoints file. Raises `InvalidInput`."""
    return parse_endpoints(_read(path), source=str(path))


def parse_endpoints(text: str, *, source: str = "") -> EndpointsFile:
    """An endpoints file from YAML text. Raises `InvalidInput`."""
    return _parse(EndpointsFile, _single(text, source), source)


def load_keys(path: Path) -> KeysFile:
    """A keys file. Raises `InvalidInput`, which quotes nothing: a key may stand where its hash should."""
    text = _read(path)
    try:
        return _parse(KeysFile, _single(text, str(path)), str(path))
    except InvalidInput as error:
        raise InvalidInput(str(path), list(dict.fromkeys(map(_unquoted, error.problems)))) from None


def _unquoted(problem: Problem) -> Problem:
    known = _KEYS_FIELD.fullmatch(problem.field)
    if known is not None:
        return Problem(problem.field, _KEYS_PROBLEMS[known[1]])
    return Problem("", "must be YAML: `tenants:` and a list of entries, each with name and keys")


_KEYS_FIELD = re.compile(r"tenants\[\d+\]\.(name|keys|maxInFlight|tokensPerMinute)(?:\[\d+\])?")
_KEYS_PROBLEMS = {
    "name": "must be a text that no other tenant has for a name",
    "keys": "must be one or more SHA-256 in 64 lower-case hexadecimal digits, in quotes, of keys that no other tenant "
    "has; not the keys themselves",
    "maxInFlight": "must be a whole number of 1 or more",
    "tokensPerMinute": "must be a whole number of 1 or more",
}


class _Loader(yaml.SafeLoader):
    """YAML as kubectl reads it: times stay text, and a key that stands twice is an error. So are a value that contains
    itself, and one that is not of its tag (`!!int x`), for which PyYAML raises whatever its conversion does."""

    def construct_document(self, node: yaml.Node) -> Any:
        self.deep_construct = True  # parts before their whole: what contains itself is seen
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node in self.recursive_objects:
            raise yaml.constructor.ConstructorError(
                None, None, "the value contains itself by its anchor; write it out instead", node.start_mark
            )
        try:
            return super().construct_object(node, deep=deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise yaml.constructor.ConstructorError(
                None, None, f"the value cannot be read as {kind}; put it in quotes, without a tag", node.start_mark
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            if key_node.tag != "tag:yaml.org,2002:merge":
                if not isinstance(key, str):
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is not a text; put it in quotes", key_node.start_mark
                    )
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} stands twice; remove one", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

# PyYAML follows YAML 1.1, where `1e-5` is text; for kubectl it is a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)

Document: TypeAlias = Any


def _documents(text: str, source: str) -> Iterator[Document]:
    try:
        for document in yaml.load_all(text, Loader=_Loader):
            if document is not None:
                yield document
    except yaml.YAMLError as error:
        raise InvalidInput(source, [Problem("", f"is not YAML: {' '.join(str(error).split())}")]) from error
    except (OverflowError, RecursionError, ValueError) as error:
        raise InvalidInput(source, [Problem("", f"is not YAML that can be used: {error}")]) from error


def _single(text: str, source: str) -> Document:
    documents = list(_documents(text, source))
    if len(documents) != 1:
        raise InvalidInput(source, [Problem("", f"must hold one YAML document, not {len(documents)}")])
    return documents[0]


def _resources(document: Document) -> Iterator[AnyResource]:
    if isinstance(document, Mapping):
        api_version, kind = document.get("apiVersion"), document.get("kind")
        if kind == "List" and isinstance(document.get("items"), list):
            for item in document["items"]:
                yield from _resources(item)
            return
        ours = not isinstance(api_version, str) or api_version.startswith(f"{GROUP}/") or kind in KINDS
        if not ours or kind == EnginePool.kind_name:
            return
    yield parse_resource(document)


def _parse(model: type[ModelT], value: object, where: str) -> ModelT:
    try:
        return model.parse(value)
    except ValidationError as error:
        raise InvalidInput(where, explain(error, model)) from error


def _name_of(value: Mapping[str, Any]) -> str:
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{value.get('kind') or 'object'} {name}" if name else str(value.get("kind") or "")


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(child for child in path.iterdir() if child.suffix in {".yaml", ".yml"})
        else:
            yield path


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(str(path), [Problem("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), [Problem("", "is not UTF-8 text")]) from error
