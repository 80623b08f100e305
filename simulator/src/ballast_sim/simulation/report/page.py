"""The report's page: figures, charts and settings in one HTML file, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from statistics import fmean
from typing import Any, cast

from ballast_sim.comparing import attained, waited
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.report.charts import distributions, figure, key_of, keys_of, load_over_time, trade_off
from ballast_sim.simulation.runs.experiment import Outcome, Setup

AS_GOOD = 0.02
"""A figure that is off the best one by less than this share of it is as good."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure (or a part of it), how it is written, and whether more or less of it is better."""

    title: str
    group: str
    part: str | None = None
    factor: float = 1.0
    digits: int = 0
    best: Callable[[Iterable[float]], float] | None = None

    def value(self, outcome: Outcome) -> float | None:
        """The figure, None where the run has none."""
        value = outcome.figures[self.group]
        return cast("float | None", cast("Mapping[str, Any]", value)[self.part] if self.part else value)

    def text(self, value: float | None) -> str:
        """The value as the table shows it."""
        return "-" if value is None else f"{value * self.factor:.{self.digits}f}"

    def winners(self, outcomes: Sequence[Outcome]) -> set[str]:
        """The texts of the best value and of those as good; none where all are, or where nothing is compared."""
        known = [value for outcome in outcomes if (value := self.value(outcome)) is not None]
        if self.best is None or not known:
            return set()
        best = self.best(known)
        good = {self.text(value) for value in known if abs(value - best) <= AS_GOOD * abs(best)}
        return set() if good == {self.text(value) for value in known} else good


_OF_FAILURES = (
    _Column("broken", "broken", None, 1, 0, min),
    _Column("retried", "retried", None, 1, 0),
)
_COLUMNS = (
    _Column("TTFT p50, s", "ttft_s", "p50", 1, 2, min),
    _Column("p99, s", "ttft_s", "p99", 1, 2, min),
    _Column("TPOT p50, ms", "tpot_s", "p50", 1e3, 1, min),
    _Column("p99, ms", "tpot_s", "p99", 1e3, 1, min),
    _Column("p99.9, ms", "tpot_s", "p999", 1e3, 1, min),
    _Column("E2E p99, s", "e2e_s", "p99", 1, 2, min),
    _Column("goodput, /s", "goodput_rps", None, 1, 3, max),
    _Column("attained, %", "attainment", None, 100, 1, max),
    _Column("tokens/s", "throughput_tok_s", None, 1, 0, max),
    _Column("preemptions", "preemptions", None, 1, 0, min),
    _Column("KV hits, %", "kv_hit_ratio", None, 100, 1, max),
    _Column("optimal, %", "optimal_assignment_ratio", None, 100, 1, max),
    _Column("decision p50, us", "decision_us", "p50"),
)


def render(setup: Setup, outcomes: Sequence[Outcome], *, command: str = "", date: str = "") -> str:
    """The whole file. `command` and `date` say how and when it was made. Raises ValueError without an outcome."""
    if not outcomes:
        raise ValueError("outcomes: a report needs at least one run")
    first = outcomes[0].figures
    title = f"{first['workload']} on {first['shape']}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}: Ballast simulation</title><style>{_style()}</style></head><body>",
            f"<h1>{escape(title)}</h1><p>{escape(_rate(first))}</p>",
            f'<p class="conclusion">{escape(conclusion(setup.objective, outcomes))}</p>',
            _origin(command, date),
            _interrupted(outcomes),
            _legend(outcomes),
            "<h2>Figures</h2><p>The best of each column is bold, and what is within "
            "2 % of it; nothing is where all are. Latencies are those of completed requests.</p>",
            _table(outcomes),
            "<h2>TTFT against TPOT</h2><p>P99 of both; lower left is better. The dotted line joins the policies that "
            "no other one beats in both.</p>",
            f'<div class="cards"><figure>{trade_off(outcomes).render()}</figure></div>',
            "<h2>Distributions</h2><p>Share of requests at or below a time; a dashed line marks the objective.</p>",
            _figures([(chart.name, chart.render()) for chart in distributions(outcomes, setup.objective)]),
            "<h2>Load over time</h2><p>One line for each endpoint, prefill in orange and all others in blue; hover for "
            "its name. Lines that lie together are a fleet in balance.</p>",
            *(
                f"<h3>{escape(name)}</h3>" + _figures([(chart.name, chart.render()) for chart in charts])
                for name, charts in load_over_time(outcomes)
            ),
            "<h2>Settings</h2>",
            _settings(setup, outcomes),
            "</body></html>",
        ]
    )


def _style() -> str:
    return resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")


def _rate(figures: Mapping[str, Any]) -> str:
    rate = "all at once" if figures["rate_rps"] is None else f"{figures['rate_rps']:.4g} requests/s"
    share = "" if figures["load"] is None else f", load {figures['load']:g} of the capacity of least-requests"
    return f"{figures['requests']} requests a run, {rate}{share}"


def conclusion(objective: Objective, outcomes: Sequence[Outcome]) -> str:
    """What the runs show, in words: attainment where there is an objective, and the worst TTFT."""
    by_key: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_key.setdefault(key_of(outcome), []).append(outcome)
    words = []
    if objective != Objective():
        words.append(attained({k: [cast("float", one.figures["attainment"]) for one in v] for k, v in by_key.items()}))
    panels = (("P99 TTFT", "ttft_s"),) if words else (("P99 TTFT", "ttft_s"), ("P99 TPOT", "tpot_s"))
    for what, group in panels:
        known = {k: [value for one in v if (value := figure(one, group, "p99")) is not None] for k, v in by_key.items()}
        times = {name: fmean(values) for name, values in known.items() if values}
        words += [waited(times, what)] if times else []
    return " ".join(words)


def _origin(command: str, date: str) -> str:
    made = f"<p>Made {escape(date)} by</p>" if date else ""
    return made + (f"<pre>{escape(command)}</pre>" if command else "")


def _interrupted(outcomes: Sequence[Outcome]) -> str:
    if not any(outcome.interrupted for outcome in outcomes):
        return ""
    return "<p><strong>Interrupted: some runs ended early and count what had arrived by then.</strong></p>"


def _legend(outcomes: Sequence[Outcome]) -> str:
    items = (
        f'<span class="item"><span class="key {style}"></span>{escape(name)}</span>'
        for name, style in keys_of(outcomes).items()
    )
    return f'<p class="legend">{"".join(items)}</p>'


def _table(outcomes: Sequence[Outcome]) -> str:
    several = len({outcome.figures["seed"] for outcome in outcomes}) > 1
    columns = _COLUMNS + tuple(column for column in _OF_FAILURES if any(column.value(one) for one in outcomes))
    winners = [column.winners(outcomes) for column in columns]
    styles = keys_of(outcomes)
    rows = []
    for outcome in outcomes:
        name = escape(key_of(outcome)) + (f", seed {outcome.figures['seed']}" if several else "")
        placements = escape(str(outcome.figures["placements"]))
        cells = [
            f'<td title="{placements}"><span class="key {styles[key_of(outcome)]}"></span>{name}</td>',
            f"<td>{outcome.figures['completed']}/{outcome.figures['requests']}</td>",
        ]
        for column, best in zip(columns, winners, strict=True):
            text = column.text(column.value(outcome))
            cells.append(f'<td class="best">{text}</td>' if text in best else f"<td>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f"<th>{escape(column.title)}</th>" for column in columns)
    return (
        '<div class="scroll"><table><thead><tr><th>policy</th><th>completed</th>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figures(charts: Sequence[tuple[str, str]]) -> str:
    cards = (f"<figure><figcaption>{escape(name)}</figcaption>{chart}</figure>" for name, chart in charts)
    return f'<div class="cards">{"".join(cards)}</div>'


def _settings(setup: Setup, outcomes: Sequence[Outcome]) -> str:
    first = outcomes[0].figures
    fleet = setup.fleet
    limits = ("ttft_s", "tpot_s", "e2e_s", "tbt_s")
    slo = [
        f"{name[:-2].upper()} {limit:g} s" for name in limits if (limit := getattr(setup.objective, name)) is not None
    ]
    recorded = "as the trace has them" if fleet.recorded_limits and setup.source.trace is not None else "none"
    known = "exact" if fleet.known_limits else str(fleet.max_tokens or recorded)
    versions = cast("Mapping[str, str]", first["versions"])
    values = {
        "endpoints": setup.shape,
        "workload": setup.source.name + (", closed loop" if setup.source.closed_loop else ""),
        "rate scale": f"{first['rate_scale']:.6g}",
        "duration, limit": f"{setup.source.duration_s or '-'} s, {setup.source.limit or '-'} requests",
        "objective": ", ".join(slo) or "none",
        "policies": ", ".join(dict.fromkeys(str(outcome.figures["placements"]) for outcome in outcomes)),
        "binding": ", ".join(dict.fromkeys(str(outcome.figures["binding"]) for outcome in outcomes)),
        "seeds": ", ".join(dict.fromkeys(str(outcome.figures["seed"]) for outcome in outcomes)),
        "physics": fleet.physics,
        "failures": "; ".join(str(failure) for failure in fleet.failures) or "none",
        "gateways": f"{fleet.gateways}; scrapes every {fleet.scrape_interval_s:g} s, {fleet.scrape_delay_s:g} s old, "
        f"{fleet.scrape_loss_ratio:.0%} lost",
        "max_tokens that policies see": known,
        "simulated in": f"{sum(cast('float', outcome.figures['sim_wall_s']) for outcome in outcomes):.1f} s of CPU",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in values.items())
    return f"<dl>{items}</dl>"
