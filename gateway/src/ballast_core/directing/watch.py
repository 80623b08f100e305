"""The progress watch: an endpoint that owes something and gives no sign of life is suspected, and then lost.

At each tick the driver tells when every endpoint last gave a sign. `beliefs.silence` has how long an honest engine may
be silent. The deadline is `patience` times that, and never below a floor:

- past the deadline the endpoint is *suspected*: it gets no new work while another endpoint can take it;
- past twice the deadline it is *lost*: every leg there is left (`Leave`), so that its request goes on elsewhere.

A scrape without an answer is evidence of its own: it makes an endpoint suspected at once, and one that is silent as
long lost. So are metrics by which requests run and no token is computed, after a more generous time: whole answers owe
nothing until their end. A leg's byte heals either state, or a token that scrapes see. A lost endpoint is ejected
(`state.health`): it gets one request at a time after a pause, and others when one of them has had an answer.
One request that hangs on an engine that lives is left alone, after a far more generous time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.silence import Owed, Silence, Silences, Slowness
from ballast_core.model import EndpointId, RequestId, Stage
from ballast_core.model.effects import Effect, Leave, PulseChanged
from ballast_core.model.life_signs import LifeSign, Pulse
from ballast_core.state.health import Health
from ballast_core.state.inventory import Inventory, Readiness
from ballast_core.state.ledger import Entry, Ledger, Phase

_LOST = 2.0
"""An endpoint is lost after so many times the deadline of a suspicion."""
_COLD = 5.0
"""The floor for a first prefill is so many times longer: engines compile and warm up with it."""
_UNANSWERED_S = 0.8
"""A scrape without an answer for so long makes an endpoint suspected."""
_FROZEN_S = 3.0
"""A scrape without an answer for so long, and nothing on any leg meanwhile, and the endpoint is lost."""
_FULL_RATIO = 0.9
"""From this share of its KV cache on, an engine may preempt, or wait for KV to be pulled."""
_FULL_FLOOR_S = 30.0
"""A prefill or a first token may wait for so long for KV that others hold."""
_REQUESTS_EVERY_S = 1.0
_UNKNOWN_WORK = 4.0
"""So many times longer is allowed where an engine has work of others, or a queue of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How patient the watch is."""

    patience: float = 3.0
    """An endpoint is suspected after this many times the silence that is expected of it, and lost after twice that."""
    step_floor_s: float = 0.6
    """The least time until a suspicion while tokens are due."""
    prefill_floor_s: float = 1.0
    """The same where only prefills are due."""
    opening_floor_s: float = 5.0
    """The same where only first tokens after a hand-off are due: a NIXL handshake takes some 5 s."""
    request_floor_s: float = 30.0
    """The least time until one request is left on an engine that lives."""


@dataclass(slots=True)
class _Seen:
    """What is known of one endpoint."""

    pulse: Pulse = Pulse.STEADY
    reason: str = ""
    heard_s: float = -math.inf
    due_s: float = 0.0
    """Until a suspicion: the longest time that was granted since the last sign, lest what is owed shrinks meanwhile."""
    expected: Silence | None = None
    """What `due_s` rests on."""
    slowness: Slowness = field(default_factory=Slowness)
    lost_s: float = -math.inf
    """When it was lost the last time."""
    left: set[RequestId] = field(default_factory=set)
    """Requests whose legs there were left, or should have been."""


class _Evidence(NamedTuple):
    """What speaks against an endpoint, in seconds."""

    silent_s: float
    """Something is due, and nothing came."""
    unanswered_s: float
    """A scrape has had no answer."""
    standing_s: float = 0.0
    """Requests run by its metrics, and it computes none of them."""
    standing_due_s: float = math.inf
    """Until that makes it suspected."""


class Watch:
    """Watches the endpoints of one Director. Times are seconds on its clock."""

    def __init__(
        self,
        settings: WatchSettings,
        inventory: Inventory,
        ledger: Ledger,
        beliefs: Beliefs,
        *,
        health: Health,
        max_retries: int,
        follows_progress: bool,
    ) -> None:
        """`follows_progress`: whether progress is reported, so that one stream can be seen to stand still."""
        self.use(settings, beliefs, max_retries=max_retries, follows_progress=follows_progress)
        self._inventory = inventory
        self._ledger = ledger
        self._health = health
        self._kv_tokens = beliefs.hardware.kv_tokens
        self._seen: dict[EndpointId, _Seen] = {}
        self._requests_at_s = -math.inf
        self._left: set[RequestId] = set()
        """Requests that were left alone on engines that live."""

    def use(self, settings: WatchSettings, beliefs: Beliefs, *, max_retries: int, follows_progress: bool) -> None:
        """Be as patient as this from now on; what has been seen stays."""
        self.settings = settings
        self._max_retries = max_retries
        self._follows_progress = follows_progress
        self._silences = Silences(beliefs)

    def pulse(self, endpoint_id: EndpointId) -> tuple[Pulse, str]:
        """What the watch thinks of an endpoint, and why."""
        seen = self._seen.get(endpoint_id)
        return (Pulse.STEADY, "") if seen is None else (seen.pulse, seen.reason)

    def heard(self, signs: Sequence[LifeSign], now_s: float) -> list[Effect]:
        """Judge every endpoint by its signs of life."""
        if len(self._seen) > len(signs):
            self._forget_the_gone()
        effects: list[Effect] = []
        work = _Work(self._ledger)
        for sign in signs:
            slot = self._inventory.slot_of(sign.endpoint_id)
            if slot is None:
                self._seen.pop(sign.endpoint_id, None)
                continue
            seen = self._seen.get(sign.endpoint_id)
            if seen is None:
                seen = self._seen[sign.endpoint_id] = _Seen()
            before = seen.pulse
            if sign.heard_s > seen.heard_s:
                self._spoke(seen, sign, now_s)
            against = self._evidence(seen, slot, sign, work, now_s)
            if before is Pulse.STEADY and not seen.due_s and against.unanswered_s < _UNANSWERED_S > against.standing_s:
                continue
            if before is Pulse.LOST and sign.computed_s > seen.lost_s:
                seen.pulse = Pulse.SUSPECTED
            self._judge(seen, slot, against)
            if seen.pulse is not before:
                effects += self._changed(seen, slot, now_s)
            if seen.pulse is Pulse.LOST:
                effects += self._leave(seen, slot, work, now_s, all_of_them=before is not Pulse.LOST)
        if now_s - self._requests_at_s >= _REQUESTS_EVERY_S:
            self._requests_at_s = now_s
            effects += self._late_requests(work, now_s)
        return effects

    # --- endpoints ----------------------------------------------------------------------------------------------

    def _forget_the_gone(self) -> None:
        """What comes back under an old name is another engine, which begins cold."""
        for endpoint_id in [each for each in self._seen if self._inventory.slot_of(each) is None]:
            del self._seen[endpoint_id]

    def _evidence(self, seen: _Seen, slot: int, sign: LifeSign, work: _Work, now_s: float) -> _Evidence:
        silent_s = now_s - max(sign.heard_s, sign.owing_since_s) if sign.legs else 0.0
        if silent_s < self.settings.step_floor_s / 2:
            seen.due_s, seen.expected = 0.0, None
        else:
            self._grant(seen, slot, self._owed(slot, work, now_s), now_s)
        stood_s = max(sign.stood_s, sign.heard_s)
        if now_s - stood_s < self.settings.request_floor_s / _LOST:
            return _Evidence(silent_s, now_s - sign.asked_s)
        return _Evidence(silent_s, now_s - sign.asked_s, *self._standing(seen, slot, stood_s, work, now_s))

    @staticmethod
    def _spoke(seen: _Seen, sign: LifeSign, now_s: float) -> None:
        if seen.expected is not None and seen.pulse is not Pulse.LOST:
            silent_s = sign.heard_s - max(seen.heard_s, sign.owing_since_s)
            seen.slowness.ended(silent_s, seen.expected, now_s)
        seen.heard_s, seen.due_s, seen.expected = sign.heard_s, 0.0, None
        if seen.pulse is Pulse.LOST:
            seen.pulse = Pulse.SUSPECTED

    def _grant(self, seen: _Seen, slot: int, owed: Owed, now_s: float) -> None:
        """Set until when it may be silent."""
        settings = self.settings
        expected = self._silences.expected(slot, owed)
        if owed.decodes:
            floor_s = settings.step_floor_s
        elif owed.preempts:
            floor_s = _FULL_FLOOR_S
        elif owed.prefills:
            floor_s = settings.prefill_floor_s * (1.0 if seen.heard_s > -math.inf else _COLD)
        else:
            floor_s = settings.opening_floor_s
        slowness = seen.slowness.ratio(now_s)
        due_s = max(floor_s, settings.patience * slowness * expected.steps_s + expected.beside_s)
        if due_s > seen.due_s:
            seen.due_s, seen.expected = due_s, expected

    def _standing(self, seen: _Seen, slot: int, stood_s: float, work: _Work, now_s: float) -> tuple[float, float]:
        """For how long an engine has shown no token though it has some of our work, and how long that may take.

        A long prompt alone shows none before its end. Without work of ours nobody waits for it, and its gauges may be
        stale: they change with steps alone.
        """
        entries = work.on(slot)
        if not entries:
            return 0.0, math.inf
        patience = self.settings.patience * seen.slowness.ratio(now_s)
        alone_s = self._silences.prefills_s(slot, work.longest_tokens(slot))
        due_s = max(self.settings.request_floor_s / _LOST, patience * alone_s)
        if self._ledger.foreign[slot]:
            due_s *= _UNKNOWN_WORK
        return now_s - max(stood_s, min(map(self._last_s, entries))), due_s

    def _judge(self, seen: _Seen, slot: int, against: _Evidence) -> None:
        if seen.pulse is Pulse.LOST:
            return
        silent_s, unanswered_s, standing_s, standing_due_s = against
        due_s = seen.due_s
        late = 0 < due_s <= silent_s
        gone = self._inventory.readiness(slot) is Readiness.GONE
        if late and silent_s >= _LOST * due_s:
            seen.pulse = Pulse.LOST
            seen.reason = f"nothing came for {silent_s:.2f} s, twice the {due_s:.2f} s that it may take"
        elif late and gone:
            seen.pulse, seen.reason = Pulse.LOST, f"it is gone, and nothing came for {silent_s:.2f} s"
        elif min(silent_s, unanswered_s) >= _FROZEN_S:
            seen.pulse = Pulse.LOST
            seen.reason = f"neither a leg nor a scrape got an answer for {min(silent_s, unanswered_s):.2f} s"
        elif standing_s >= _LOST * standing_due_s:
            seen.pulse = Pulse.LOST
            seen.reason = f"by its metrics requests run, and none got a token for {standing_s:.0f} s"
        elif late:
            seen.pulse = Pulse.SUSPECTED
            seen.reason = f"nothing came for {silent_s:.2f} s, and {due_s:.2f} s is what it may take"
        elif unanswered_s >= _UNANSWERED_S and (silent_s >= _UNANSWERED_S or not silent_s):
            seen.pulse = Pulse.SUSPECTED
            seen.reason = f"a scrape got no answer for {unanswered_s:.2f} s"
        elif standing_s >= standing_due_s:
            seen.pulse = Pulse.SUSPECTED
            seen.reason = f"by its metrics requests run, and none got a token for {standing_s:.0f} s"
        elif seen.pulse is Pulse.SUSPECTED:
            seen.pulse, seen.reason = Pulse.STEADY, ""

    def _changed(self, seen: _Seen, slot: int, now_s: float) -> Iterable[Effect]:
        self._inventory.suspect(slot, seen.pulse is not Pulse.STEADY)
        if seen.pulse is Pulse.LOST:
            seen.lost_s = now_s
        else:
            seen.left.clear()
        return [PulseChanged(self._inventory.endpoint(slot), seen.pulse, seen.reason or "it gave a sign of life")]

    def _leave(self, seen: _Seen, slot: int, work: _Work, now_s: float, *, all_of_them: bool) -> Iterable[Effect]:
        """Leave the legs on a lost endpoint: at once, or each that came later (a probe) when its own time is over."""
        endpoint_id = self._inventory.endpoint(slot).id
        if all_of_them:
            self._health.lose(slot, seen.reason, now_s)
        entries = work.on(slot)
        seen.left &= {entry.request.id for entry in entries}
        due_s = _LOST * (seen.due_s or self.settings.opening_floor_s)
        for entry in entries:
            late = all_of_them or now_s - entry.prefill.dispatched_s >= due_s
            if late and entry.request.id not in seen.left:
                seen.left.add(entry.request.id)
                self._health.lose(slot, seen.reason, now_s)
                yield Leave(entry.request.id, endpoint_id, seen.reason)

    def _owed(self, slot: int, work: _Work, now_s: float) -> Owed:
        ledger, inventory = self._ledger, self._inventory
        decodes, context_tokens, _ = ledger.decode_load(slot)
        past_first = work.past_first_token(slot)
        kv_ratio = context_tokens / float(self._kv_tokens(np.array([slot], np.int64))[0])
        if now_s - inventory.observed_at_s[slot] < _UNANSWERED_S:
            kv_ratio = max(kv_ratio, float(inventory.kv_usage_ratio[slot]))
        return Owed(
            decodes=past_first,
            opening=decodes - past_first,
            prefills=int(ledger.requests[Stage.PREFILL][slot]),
            foreign=int(ledger.foreign[slot]),
            context_tokens=context_tokens,
            uncached_tokens=int(ledger.uncached_tokens[slot]),
            longest_tokens=work.longest_tokens(slot),
            preempts=kv_ratio >= _FULL_RATIO,
        )

    # --- single requests ----------------------------------------------------------------------------------------

    def _late_requests(self, work: _Work, now_s: float) -> Iterable[Effect]:
        """Leave the legs that hang on engines that live, where the request may go elsewhere."""
        floor_s, entries = self.settings.request_floor_s, self._ledger.entries
        self._left &= entries.keys()
        for entry in entries.values():
            slot = _leg_slot(entry)
            if slot is None or entry.failures >= self._max_retries or entry.request.id in self._left:
                continue
            if entry.generated_tokens and not self._follows_progress:
                continue
            silent_s = now_s - self._last_s(entry)
            if silent_s < floor_s:
                continue
            endpoint_id = self._inventory.endpoint(slot).id
            seen = self._seen.get(endpoint_id)
            patience = self.settings.patience * (1.0 if seen is None else seen.slowness.ratio(now_s))
            due_s = max(floor_s, patience * self._to_next_s(entry, slot, work, now_s))
            if self._inventory.waiting[slot]:
                due_s *= _UNKNOWN_WORK
            if silent_s >= due_s:
                self._left.add(entry.request.id)
                reason = f"nothing came for {silent_s:.0f} s, while others there got their tokens"
                yield Leave(entry.request.id, endpoint_id, reason, alone=True)

    @staticmethod
    def _last_s(entry: Entry) -> float:
        """When the request was last known to go on: its last token that was reported, else its dispatch or hand-off."""
        if entry.phase is Phase.PREFILLING:
            return entry.prefill.dispatched_s
        return float(entry.flights.progress_at_s[entry.row])

    def _to_next_s(self, entry: Entry, slot: int, work: _Work, now_s: float) -> float:
        """Expected seconds to its first token, behind all that is queued there; or to so many that one is reported."""
        prompt_tokens = entry.request.prompt_tokens
        if entry.generated_tokens:
            expected = self._silences.expected(slot, self._owed(slot, work, now_s))
            return _REPORTED_TOKENS * (expected.steps_s + expected.beside_s)
        tokens = max(int(self._ledger.uncached_tokens[slot]), prompt_tokens)
        return max(entry.prefill.predicted_s, self._silences.prefills_s(slot, tokens))


_REPORTED_TOKENS = 16
"""Drivers report progress in steps of so many tokens."""


class _Work:
    """What is booked where, gathered once, and only in a tick in which something is late."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: dict[int, list[Entry]] | None = None

    def on(self, slot: int) -> list[Entry]:
        """The requests with a leg there."""
        if self._entries is None:
            self._entries = {}
            for entry in self._ledger:
                at = _leg_slot(entry)
                if at is not None:
                    self._entries.setdefault(at, []).append(entry)
        return self._entries.get(slot, [])

    def past_first_token(self, slot: int) -> int:
        """How many of them have a token of this leg."""
        return sum(entry.phase is Phase.DECODING and entry.generated_tokens > 0 for entry in self.on(slot))

    def longest_tokens(self, slot: int) -> int:
        """The longest of their prompts."""
        return max((entry.request.prompt_tokens for entry in self.on(slot)), default=0)


def _leg_slot(entry: Entry) -> int | None:
    """Where its leg is; None while it is held."""
    if entry.phase is Phase.PREFILLING and entry.prefill_slot is not None:
        return entry.prefill_slot
    return entry.decode_slot
