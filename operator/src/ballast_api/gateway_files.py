"""The files that a gateway reads beside its settings: endpoints (`discovery.file`) and keys (`keys.file`)."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from ballast_api.common import ApiModel, KeyedBy, NonEmptyStr, PositiveInt, Seq, raise_at
from ballast_api.network_types import Address
from ballast_core.model import Endpoint, EndpointId, Role


class EndpointEntry(ApiModel):
    """One engine in an endpoints file."""

    name: NonEmptyStr
    """Names the endpoint in metrics, logs and decisions."""
    address: Address
    """`host:port`; an IPv6 host stands in brackets."""
    role: Literal["prefill", "decode", "flexible"]
    """What it may be asked to do."""
    pool: str = ""
    """Pool that it belongs to, for metrics."""
    profile: str = ""
    """Key of `profiles` in the settings, or name of a shipped profile; empty if unknown."""
    revision: str = ""
    """What the KV compatibility of the engine depends on, in a word of your own, such as an image's tag: engines of
    different words exchange no KV blocks. Empty is a word, too."""
    pod_api: Address | None = None
    """`host:port` of its agent's pod API (docs/pod-api.md). Left out, the endpoint has no agent."""

    def to_core(self) -> Endpoint:
        """The core's value."""
        return Endpoint(
            id=EndpointId(self.name),
            address=self.address,
            role=Role(self.role),
            pool=self.pool,
            profile=self.profile,
            revision=self.revision,
        )


class EndpointsFile(ApiModel):
    """The file of `discovery.file`: `endpoints:` and a list."""

    endpoints: Annotated[Seq[EndpointEntry], KeyedBy("name")] = ()
    """The engines."""

    def to_yaml(self) -> str:
        """The file's text."""
        return yaml.safe_dump(self.dump(), sort_keys=False, allow_unicode=True)


def _key_hash(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise PydanticCustomError("hash", "must be a SHA-256 in 64 lower-case hexadecimal digits, not the key itself")
    return value


KeyHash = Annotated[str, AfterValidator(_key_hash)]
"""SHA-256 of an API key, in hexadecimal: `printf %s KEY | sha256sum`."""


class TenantEntry(ApiModel):
    """A tenant of a keys file. Its limits are those of all gateways together that hear each other."""

    name: NonEmptyStr
    """Tells tenants apart."""
    keys: Annotated[Seq[KeyHash], Field(min_length=1, max_length=1000)] = ()
    """SHA-256 of each of its API keys, in hexadecimal: `printf %s KEY | sha256sum`. Left out for a tenant that comes
    with JSON Web Tokens only."""
    max_in_flight: PositiveInt | None = None
    """Requests of its that may be in flight; more are answered 429. Left out, there is no limit of its own."""
    tokens_per_minute: PositiveInt | None = None
    """Prompt and output tokens a minute. Up to a minute's worth may come at once; while it has used more than that, it
    is answered 429, with the time until then in Retry-After. Left out, there is no limit."""


class KeysFile(ApiModel):
    """The file of `keys.file`: `tenants:` and a list."""

    tenants: Annotated[Seq[TenantEntry], KeyedBy("name")] = ()
    """Whose keys are known."""

    @model_validator(mode="after")
    def _check_that_a_key_has_one_tenant(self) -> Self:
        owners: dict[str, str] = {}
        for number, tenant in enumerate(self.tenants):
            for key in tenant.keys:
                other = owners.setdefault(key, tenant.name)
                if other != tenant.name:
                    reason = f"one of these keys is {other!r}'s, too; give each key to one tenant"
                    raise_at("KeysFile", [(f"tenants[{number}].keys", "key", reason, None)])
        return self
