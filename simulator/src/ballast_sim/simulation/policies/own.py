"""Placements of one's own: a class that is named as `package.module:Class`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.placement.registry import ALL_PLACEMENTS
from ballast_sim.settings import SettingError


def load_placement(text: str) -> type[Placement]:
    """The class that `package.module:Class` names; modules of the working directory are found, too.

    It keeps to `Placement` and needs no parameter. Raises SettingError naming the option and what is wrong.
    """
    module_name, _, class_name = text.partition(":")
    if not module_name or not class_name.isidentifier():
        raise SettingError("policy_module", f"cannot read {text!r}; write package.module:Class")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise SettingError("policy_module", f"{text}: cannot be imported: {error}") from None
    type_name = getattr(found, "type", None)
    if not isinstance(found, type) or not isinstance(type_name, str) or not hasattr(found, "costs"):
        raise SettingError("policy_module", f"{text}: is no placement: a class with `type`, `needs` and `costs`")
    if type_name in ALL_PLACEMENTS or any(letter in type_name for letter in ",/ "):
        raise SettingError("policy_module", f"{text}: its type {type_name!r} is taken, or has a blank, comma or slash")
    try:
        found()
    except TypeError as error:
        raise SettingError("policy_module", f"{text}: cannot be made without parameters: {error}") from None
    return found
