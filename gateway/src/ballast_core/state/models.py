"""Which endpoint serves which model and adapter, by slot, and what each adapter finds there."""

from __future__ import annotations

from collections.abc import Collection

from ballast_core.model.served_models import ServedModels
from ballast_core.state.inventory import Candidates

_MOST_REMEMBERED = 4096
_NONE: frozenset[int] = frozenset()


class Models:
    """What endpoints have said, and the adapters of requests that were sent there since."""

    def __init__(self) -> None:
        self._said: dict[int, ServedModels] = {}
        self._sent: dict[int, set[str]] = {}
        """Adapters of requests that were placed there since it spoke: the next scrape will show them."""
        self._lacking: dict[tuple[str, str], frozenset[int]] = {}
        """Slots that do not serve a model of a root, for those that were asked for."""
        self.adapters: Collection[str] = frozenset()
        """The names that are an adapter somewhere."""

    def said(self, slot: int, models: ServedModels) -> bool:
        """An endpoint says what it serves. Returns whether that is news."""
        before = self._said.get(slot)
        self._said[slot] = models
        self._sent.pop(slot, None)
        news = before is None or _of(before) != _of(models)
        if news:
            self._changed()
        return news

    def forget(self, slot: int) -> None:
        """The slot is free for another endpoint, or its endpoint is gone."""
        self._sent.pop(slot, None)
        if self._said.pop(slot, None) is not None:
            self._changed()

    def sent(self, slot: int, model: str) -> None:
        """A request for an adapter was placed there."""
        self._sent.setdefault(slot, set()).add(model)

    def serves(self, model: str, slot: int, root: str = "") -> bool:
        """Whether the endpoint there serves a model, as far as it has said what it serves; `root`: as of `lacking`."""
        return slot not in self.lacking(model, root)

    def root(self, model: str, slot: int) -> str:
        """The weights behind a model there; empty if the endpoint has not said."""
        said = self._said.get(slot)
        return "" if said is None else said.roots.get(model, "")

    def serving(self, model: str, candidates: Candidates, root: str = "") -> Candidates:
        """The candidates that serve a model, as far as they have said what they serve; `root`: as of `lacking`."""
        lacking = self.lacking(model, root)
        if not lacking:
            return candidates
        kept = [k for k, slot in enumerate(candidates.slots.tolist()) if slot not in lacking]
        return candidates if len(kept) == len(candidates.endpoints) else candidates.take(kept)

    def at_work(self, slot: int, adapter: str) -> bool:
        """Whether a request for it runs there, or was sent there."""
        said = self._said.get(slot)
        return adapter in self._sent.get(slot, ()) or (said is not None and adapter in said.running)

    def waits(self, slot: int, adapter: str) -> bool:
        """Whether a request for it waits there."""
        said = self._said.get(slot)
        return said is not None and adapter in said.waiting

    def has_room(self, slot: int) -> bool:
        """Whether one more adapter could run there; an endpoint that has not said how many may run has room."""
        said = self._said.get(slot)
        if said is None or not said.most_running:
            return True
        return len(said.running | self._sent.get(slot, set())) < said.most_running

    def lacking(self, model: str, root: str = "") -> frozenset[int]:
        """The slots of endpoints that have said what they serve, and do not serve this; `root`: nor with these weights,
        as what others have begun needs them. Empty: any will do.
        """
        lacking = self._lacking.get((model, root))
        if lacking is not None:
            return lacking
        if not model or not self._said:
            return _NONE
        if len(self._lacking) >= _MOST_REMEMBERED:
            self._lacking.clear()
        lacking = frozenset(slot for slot, said in self._said.items() if not _serves(said, model, root))
        self._lacking[model, root] = lacking
        return lacking

    def _changed(self) -> None:
        self._lacking.clear()
        self.adapters = frozenset(name for said in self._said.values() for name in said.adapters)


def _of(models: ServedModels) -> tuple[object, ...]:
    """What does not change with the work there."""
    return models.names, models.adapters, models.roots


def _serves(said: ServedModels, model: str, root: str) -> bool:
    if said.names and model not in said.names:
        return False
    return not root or said.roots.get(model, root) == root
