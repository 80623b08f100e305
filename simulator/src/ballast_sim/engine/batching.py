"""The setting for prompt tokens in a step: vLLM's fixed budget, or what the decodes' SLO leaves.

The second is Libra's local scheduler: `papers.libra`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ballast_sim.settings import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatching:
    """`chunk_tokens` is vLLM's max_num_batched_tokens, None the profile's; with `tbt_slo_s` prompts follow the SLO."""

    chunk_tokens: int | None = None
    tbt_slo_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> LocalBatching:
        """Reads `default`, `chunk:512` (tokens) and `slo:0.1` (seconds). Raises ValueError."""
        kind, _, number = text.partition(":")
        try:
            if text == "default":
                return cls()
            if kind == "chunk" and int(number) >= 1:
                return cls(chunk_tokens=int(number))
            if kind == "slo" and 0 < float(number) < float("inf"):
                return cls(tbt_slo_s=float(number))
        except ValueError:
            pass
        raise SettingError(
            "local_batching",
            f"cannot read {text!r}; write default, chunk:512 (tokens a step) or slo:0.1 (seconds between tokens)",
        )

    def __str__(self) -> str:
        """As `parse` reads it."""
        if self.tbt_slo_s is not None:
            return f"slo:{self.tbt_slo_s:g}"
        return "default" if self.chunk_tokens is None else f"chunk:{self.chunk_tokens}"


PROFILES_OWN = LocalBatching()
"""vLLM's fixed budget, the profile's."""
