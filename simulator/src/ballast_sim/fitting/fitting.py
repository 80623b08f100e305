"""From files to a profile: their kind, the fit, and the notes on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ballast_core.profiles import HardwareProfile
from ballast_sim.fitting.bench_results import read_bench_result
from ballast_sim.fitting.derivation import percent, rounded
from ballast_sim.fitting.errors import FitInputError
from ballast_sim.fitting.law import LawFit, NotEnoughSamples, fit_law
from ballast_sim.fitting.measurements import Measurements, read_text
from ballast_sim.fitting.samples import Samples
from ballast_sim.fitting.scrapes import read_scrapes
from ballast_sim.fitting.step_logs import read_step_log

Kind = Literal["steps", "bench", "metrics"]
KINDS: tuple[Kind, ...] = ("steps", "bench", "metrics")
NAMES = {
    "steps": "steps",
    "bench": "runs of steps reconstructed from token times",
    "metrics": "intervals between scrapes",
}
SIGNIFICANT_DIGITS = 6
LONGEST_DERIVATION = 1024  # what the custom resource takes


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedProfile:
    """A profile made from measurements, and how far to trust it."""

    profile: HardwareProfile
    base: HardwareProfile
    fit: LawFit
    kind: Kind
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The whole fit; `kept` and `unsure`: see `LawFit`."""
        return {
            "profile": asdict(self.profile),
            "kind": self.kind,
            "files": list(self.files),
            "base": self.base.name,
            "kept": dict(self.fit.kept),
            "unsure": dict(self.fit.unsure),
            "train": asdict(self.fit.train),
            "held_out": asdict(self.fit.held_out),
            "notes": list(self.notes),
            "warnings": self.fit.warnings(),
        }


def fit_profile(
    paths: Sequence[Path],
    base: HardwareProfile,
    name: str,
    *,
    kind: Kind | None = None,
    max_num_batched_tokens: int | None = None,
) -> FittedProfile:
    """Read the files and fit the law. `kind` None: recognised from the files, which must be of one kind.

    What the files do not determine (link, KV bytes a token, coefficients) keeps the value of `base`; what they
    state of the engine (KV capacity, block size, budget) replaces it. `max_num_batched_tokens` is the engine's budget,
    by default that of `base`. Raises `FitInputError`.
    """
    kinds = {kind} if kind else {_kind_of(path) for path in paths}
    if len(kinds) != 1:
        raise FitInputError(f"the files are of different kinds ({', '.join(sorted(kinds))}); fit one kind at a time")
    (found,) = kinds
    if max_num_batched_tokens:
        base = replace(base, max_num_batched_tokens=max_num_batched_tokens)
    measured = _read(paths, found, base)
    facts: dict[str, Any] = {**measured.facts}
    if max_num_batched_tokens:
        facts["max_num_batched_tokens"] = max_num_batched_tokens
    try:
        stated = replace(base, name=name, **facts)
    except ValueError as error:
        raise FitInputError(f"{paths[0]}: what it states of the engine cannot be: {error}") from None
    try:
        fit = fit_law(Samples.of(measured.samples), stated)
    except NotEnoughSamples as error:
        passed = "; ".join(measured.notes)
        raise FitInputError(f"{paths[0]}: {error}" + (f" ({passed})" if passed else "")) from None
    derivation = _derivation(fit, found, base, [path.name for path in paths])
    profile = replace(rounded(fit.profile, SIGNIFICANT_DIGITS), derivation=derivation)
    return FittedProfile(
        profile=profile,
        base=base,
        fit=fit,
        kind=found,
        files=tuple(str(path) for path in paths),
        notes=tuple(measured.notes),
    )


def _kind_of(path: Path) -> Kind:
    """By the first characters: a JSON object with token times, Prometheus text, or rows."""
    if path.is_dir():
        return "metrics"
    head = read_text(path).lstrip()[:4096]
    if head.startswith(("#", "vllm:")):
        return "metrics"
    first_line = head.partition("\n")[0]
    looks_like_rows = '"summary"' in first_line or '"step"' in first_line or '"duration_ms"' in first_line
    return "bench" if head.startswith("{") and not looks_like_rows else "steps"


def _read(paths: Sequence[Path], kind: Kind, base: HardwareProfile) -> Measurements:
    """All files as one."""
    if kind == "metrics":
        return read_scrapes(paths, base.max_num_batched_tokens)
    parts = [
        read_step_log(path) if kind == "steps" else read_bench_result(path, base.max_num_batched_tokens)
        for path in paths
    ]
    if any(part.facts != parts[0].facts for part in parts):
        raise FitInputError("the files state different engines (KV capacity, block size, budget); fit them one by one")
    return Measurements(
        samples=[sample for part in parts for sample in part.samples],
        facts=parts[0].facts,
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _derivation(fit: LawFit, kind: Kind, base: HardwareProfile, files: Sequence[str]) -> str:
    """One sentence for the manifest."""
    errors = fit.held_out
    shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    text = (
        f"ballast profile fit: {fit.train.samples + errors.samples} {NAMES[kind]} of {shown}; held-out error mean "
        f"{percent(errors.mean_ratio)}, p90 {percent(errors.p90_ratio)}, max {percent(errors.max_ratio)}"
    )
    if fit.kept:
        text += f"; from {base.name}: {', '.join(fit.kept)}"
    return text[:LONGEST_DERIVATION]
