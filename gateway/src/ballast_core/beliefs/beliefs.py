"""All beliefs together. Policies read them through their view; only `directing.learning` updates them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ballast_core.arrays import IntArray
from ballast_core.beliefs.hindsight import Hindsight
from ballast_core.beliefs.hotspots import HotspotDetector
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.prefill_time import PrefillTimes
from ballast_core.beliefs.prefix_index import PrefixIndex
from ballast_core.beliefs.rates import ServiceRates
from ballast_core.beliefs.recent_batches import RecentBatches
from ballast_core.beliefs.reported_prefixes import ReportedPrefixes
from ballast_core.beliefs.stacked_profiles import StackedProfiles
from ballast_core.beliefs.step_time import StepTimeBook
from ballast_core.beliefs.survival import CensoringAwareSurvival, EmaSurvival
from ballast_core.beliefs.survival_book import SurvivalBook, SurvivalSettings
from ballast_core.model import Request
from ballast_core.profiles import UNINFORMED_PROFILE, HardwareProfile


class Beliefs:
    """All beliefs. Those outside `kinds` exist and return their priors, but learn nothing."""

    def __init__(
        self, kinds: Belief, profiles: Mapping[str, HardwareProfile], lengths: SurvivalSettings | None = None
    ) -> None:
        """`profiles`: by name, the key is `Endpoint.profile`."""
        self.kinds = kinds
        self.knows_prefixes = Belief.PREFIXES in kinds
        """Whether `prefixes` knows every endpoint, once a request has brought blocks."""
        self.lengths = SurvivalBook(lengths)
        self._learn_lengths_by(kinds)
        self.step_times = StepTimeBook()
        self.prefill_times = PrefillTimes()
        self.prefixes = PrefixIndex()
        """By what we route."""
        self.reported = ReportedPrefixes()
        """By what endpoints report."""
        self.rates = ServiceRates()
        self.batches = RecentBatches()
        self.hotspots = HotspotDetector()
        self.hindsight = Hindsight()
        """Of placements; no policy reads it. It stays empty while no policy reads prefill times."""
        self.hardware = StackedProfiles()
        """Profiles by slot as declared, without anything learned."""
        self.block_size = 0
        """Tokens per prefix block; 0 until a request brings one."""
        self._profiles = profiles
        self._names: dict[int, str] = {}

    def add(self, slot: int, profile_name: str) -> None:
        """An endpoint is new in this slot, or back in it; its cache is empty. `profile_name` may be unknown."""
        profile = self._profiles.get(profile_name)
        if self._names.get(slot) != profile_name:
            self._names[slot] = profile_name
            self.batches.forget(slot)
            self.hardware.put(slot, profile or UNINFORMED_PROFILE)
            if Belief.STEP_TIMES in self.kinds:
                self.step_times.add(slot, profile)
            if Belief.PREFILL_TIMES in self.kinds:
                self.prefill_times.add(slot, profile)
        self._add_prefixes(slot)

    def use(self, kinds: Belief, profiles: Mapping[str, HardwareProfile]) -> None:
        """Learn these kinds from now on, by these profiles. What is learned already stays, but for what rested on
        another profile, and for kinds that have not been learned meanwhile."""
        fresh, before = kinds & ~self.kinds, self._profiles
        self.kinds, self._profiles = kinds, profiles
        self._learn_lengths_by(kinds)
        self.knows_prefixes = Belief.PREFIXES in kinds
        for slot, name in self._names.items():
            profile, old = profiles.get(name), before.get(name)
            changed = profile != old
            if changed:
                self.hardware.put(slot, profile or UNINFORMED_PROFILE)
            if Belief.STEP_TIMES in (kinds if changed else fresh):
                self.step_times.add(slot, profile)
            if Belief.PREFILL_TIMES in (kinds if changed else fresh):
                self.prefill_times.add(slot, profile)
            if (
                Belief.PREFIXES in fresh
                or (profile or UNINFORMED_PROFILE).kv_tokens != (old or UNINFORMED_PROFILE).kv_tokens
            ):
                self._add_prefixes(slot)

    def _learn_lengths_by(self, kinds: Belief) -> None:
        """Curves learned by another estimator do not go on: those of the new one begin."""
        if Belief.EMA_LENGTHS in kinds:
            self.lengths.use(EmaSurvival)
        elif self.lengths.settings.estimator is EmaSurvival:
            self.lengths.use(CensoringAwareSurvival)

    def _add_prefixes(self, slot: int) -> None:
        if self.knows_prefixes and self.block_size:
            capacity = (self._profiles.get(self._names[slot]) or UNINFORMED_PROFILE).kv_tokens // self.block_size
            self.prefixes.add(slot, max(capacity, 1))

    def lose_cache(self, slot: int) -> None:
        """The endpoint is gone, and its cache with it; its hardware is remembered in case it returns.

        What it reports goes by its reports alone.
        """
        self.prefixes.remove(slot)

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint."""
        self._names.pop(slot, None)
        self.hardware.clear(slot)
        self.step_times.remove(slot)
        self.prefill_times.remove(slot)
        self.prefixes.remove(slot)
        self.reported.vacate(slot)
        self.rates.forget(slot)
        self.batches.forget(slot)

    def use_blocks_of(self, block_size: int) -> bool:
        """Whether the prefix index works in blocks of this size: it takes the first size that it is given."""
        if block_size > 0 and not self.block_size:
            self.block_size = block_size
            for slot in self._names:
                self._add_prefixes(slot)
        return block_size > 0 and block_size == self.block_size

    def cached_tokens(self, request: Request, slots: IntArray) -> IntArray:
        """Leading tokens of the prompt that the endpoints in these slots hold: as they report it, else as believed.

        Where some reports were missed the larger one of the two counts. 0 where nothing is known.
        """
        blocks = request.block_hashes
        if blocks and self.knows_prefixes and request.block_size == self.block_size:
            believed = self.prefixes.match(blocks, self.block_size).take(slots)
            if len(blocks) * request.block_size > request.prompt_tokens:  # an estimate, in another unit
                np.minimum(believed, request.prompt_tokens, out=believed)
        else:
            believed = np.zeros(len(slots), np.int64)
        if request.tokens is None or not self.reported:
            return believed
        reported, complete = self.reported.match(request.tokens, slots)
        if len(request.tokens) > request.prompt_tokens:
            np.minimum(reported, request.prompt_tokens, out=reported)
        return np.where(complete, reported, np.maximum(reported, believed))
