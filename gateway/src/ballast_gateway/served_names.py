"""The names that clients may put into `model`: those of the settings, and adapters that engines have loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from ballast_api.gateway_settings import GatewaySettings


def _none() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True)
class ServedNames:
    """A collection of names; iteration gives those of the settings first, in their order."""

    settled: tuple[str, ...] = ()
    """Names of the settings: the model's, then adapters'."""
    discovered: Callable[[], Collection[str]] = _none
    """Adapters that some endpoint has loaded, where the settings admit these."""

    @classmethod
    def of(cls, settings: GatewaySettings, loaded: Callable[[], Collection[str]]) -> ServedNames:
        """What these settings admit; `loaded` has the adapters of the endpoints that take requests."""
        adapters = settings.adapters
        names = tuple(dict.fromkeys((*settings.model.served_names, *adapters.names)))
        return cls(names, loaded if adapters.discover else _none)

    def __contains__(self, name: object) -> bool:
        return name in self.settled or name in self.discovered()

    def __iter__(self) -> Iterator[str]:
        yield from self.settled
        yield from sorted(set(self.discovered()).difference(self.settled))

    def __len__(self) -> int:
        return len(self.settled) + len(set(self.discovered()).difference(self.settled))
