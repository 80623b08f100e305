"""Placements of one's own: a class that is named as `package.module:Class`."""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request
from ballast_core.policies.placement.protocol import Placement
from ballast_core.policies.placement.registry import ALL_PLACEMENTS
from ballast_core.state.view import View
from ballast_sim.settings import SettingError


@dataclass(frozen=True, slots=True)
class OwnPlacement:
    """A placement of one's own, whose costs are looked at: what is none would be a choice at random, without a word."""

    placement: Placement
    named: str
    """As the user named it."""

    @property
    def type(self) -> str:
        """The placement's."""
        return self.placement.type

    @property
    def needs(self) -> Belief:
        """The placement's."""
        return self.placement.needs

    def costs(self, view: View, request: Request) -> FloatArray:
        """The placement's. Raises SettingError where it fails, or gives anything but one number for each candidate."""
        try:
            costs = np.asarray(self.placement.costs(view, request), np.float64)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:2]  # the first one of theirs
            where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames)
            raise self._wrong(f"costs fails: {type(error).__name__}: {error}{where}") from None
        if costs.shape != (count := len(view.endpoints),):
            raise self._wrong(f"costs gives an array of shape {costs.shape} for {count} candidates, not ({count},)")
        if np.isnan(costs).any():
            raise self._wrong("costs gives NaN, which is no cost; inf means that a candidate is not eligible")
        return costs

    def _wrong(self, problem: str) -> SettingError:
        return SettingError("policy_module", f"{self.named}: {problem}")


def load_placement(text: str) -> Placement:
    """The placement that `package.module:Class` names; modules of the working directory are found, too.

    Its class needs no parameter. Raises SettingError naming the option and what is wrong.
    """
    module_name, _, class_name = text.partition(":")
    if not module_name or not class_name.isidentifier():
        raise SettingError("policy_module", f"cannot read {text!r}; write package.module:Class")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a module may raise anything
        raise SettingError("policy_module", f"{text}: cannot be imported: {error}") from None
    type_name = getattr(found, "type", None)
    has_all = hasattr(found, "costs") and hasattr(found, "needs")
    if not isinstance(found, type) or not isinstance(type_name, str) or not has_all:
        raise SettingError("policy_module", f"{text}: is no placement: a class with `type`, `needs` and `costs`")
    if type_name in ALL_PLACEMENTS or any(letter in type_name for letter in ",/ "):
        raise SettingError("policy_module", f"{text}: its type {type_name!r} is taken, or has a blank, comma or slash")
    try:
        return cast("Placement", OwnPlacement(found(), text))  # its type is of the object, not of the class
    except Exception as error:
        raise SettingError("policy_module", f"{text}: cannot be made without parameters: {error}") from None
