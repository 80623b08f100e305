"""The gateway's settings, rendered into a ConfigMap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import yaml

from ballast_api import names
from ballast_api.gateway_settings import (
    CanarySettings,
    ClassObjective,
    Discovery,
    GatewaySettings,
    KubernetesDiscovery,
    KubernetesPeers,
    Limits,
    Peers,
    Picker,
    PodApi,
    ServedModel,
)
from ballast_api.hardware_profile import EngineProfile, HardwareProfileSpec
from ballast_api.scheduling_policy import SchedulingPolicySpec
from ballast_api.serving_pool import ServingPoolSpec
from ballast_operator.kinds import CONFIG_MAP, Manifest
from ballast_operator.specs.meta import Owner, child
from ballast_operator.specs.profiles import numbers_of
from ballast_operator.specs.token_mount import TOKEN_FILE

WAKING_HOLD_S: Final = 300.0
"""How long a request waits for instances to start where a fleet may scale to zero, unless that is set."""


def gateway_settings(
    owner: Owner,
    spec: ServingPoolSpec,
    policy: SchedulingPolicySpec,
    profiles: Mapping[str, HardwareProfileSpec],
    *,
    former: Mapping[str, EngineProfile] = MappingProxyType({}),
    objectives: tuple[ClassObjective, ...] = (),
    fallbacks: int | None = None,
    canary: CanarySettings | None = None,
    startup_s: float | None = None,
) -> GatewaySettings:
    """What the gateway of this ServingPool needs to know. `former`: profiles that pods of an older spec go by.
    `fallbacks`: what its proxy follows, unless it is set. `canary`: the revision that is weighed. `startup_s`: of an
    instance, as measured."""
    tuning = spec.gateway.settings
    tuned = {} if tuning is None else {name: getattr(tuning, name) for name in tuning.model_fields_set}
    if fallbacks is not None and "fallbacks" not in (tuned["picker"].model_fields_set if "picker" in tuned else ()):
        tuned["picker"] = Picker(fallbacks=fallbacks)
    if spec.ratio.scale_to_zero_after_s is not None:
        limits = tuned.get("limits", Limits())
        if "hold_s" not in limits.model_fields_set:
            tuned["limits"] = limits.model_copy(update={"hold_s": WAKING_HOLD_S})
        if startup_s is not None:
            tuned["startup_s"] = _coarse(startup_s)
    if objectives:
        tuned["objectives"] = objectives
    if canary is not None:
        tuned["canary"] = canary
    return GatewaySettings(
        **tuned,
        model=ServedModel(served_names=spec.model.all_served_names()),
        face=spec.gateway.face,
        policy=policy,
        connector=spec.engine.kv_connector.type,
        discovery=Discovery(
            kubernetes=KubernetesDiscovery(
                namespace=owner.namespace,
                selector=names.endpoint_selector(owner.name),
                port=spec.engine.port,
            )
        ),
        pod_api=PodApi(token_file=TOKEN_FILE),
        peers=Peers(
            kubernetes=KubernetesPeers(
                namespace=owner.namespace,
                selector=names.gateway_selector(owner.name),
                lease=names.gateway_object_name(owner.name),
            )
        ),
        profiles=dict(sorted({**former, **{name: numbers_of(each) for name, each in profiles.items()}}.items())),
    )


def _coarse(startup_s: float) -> float:
    """Rounded up to one of few values, a quarter apart: a median that wavers writes no settings."""
    value = 1.0
    while value < startup_s:
        value = math.ceil(value * 1.25)
    return value


def gateway_config_map(owner: Owner, settings: GatewaySettings) -> Manifest:
    """The ConfigMap with the settings as YAML."""
    data = {names.GATEWAY_CONFIG_FILE: settings_text(settings)}
    return child(CONFIG_MAP, owner, names.gateway_object_name(owner.name), "gateway", data=data)


def settings_text(settings: GatewaySettings) -> str:
    """The file's text: what the operator has set, defaults left to the gateway.

    So an operator with new settings still serves gateways of an older image, and its upgrade rolls no gateway.
    """
    plain = settings.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
