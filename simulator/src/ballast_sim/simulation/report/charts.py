"""What the report draws: distributions, the trade between TTFT and TPOT, load over time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.report.svg import Axis, Chart, Mark, Point, Series, linear, logarithmic
from ballast_sim.simulation.runs.experiment import Curves, Outcome

LEAST_SPAN = 0.25
"""Of its largest value, that an axis without zero spans at least: a difference of 1 % looks like one."""
COLOURS = 8
"""How many the page's CSS knows; further policies are drawn dashed."""


def key_of(outcome: Outcome) -> str:
    """What gets one colour: a policy, with its binding where that is not the usual one."""
    policy, binding = str(outcome.figures["policy"]), outcome.figures["binding"]
    return policy if binding == "late" else f"{policy} ({binding})"


def keys_of(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The CSS class of each policy, in order of appearance."""
    names = list(dict.fromkeys(key_of(outcome) for outcome in outcomes))
    return {name: f"c{k % COLOURS}" + (" dashed" if k >= COLOURS else "") for k, name in enumerate(names)}


def figure(outcome: Outcome, group: str, name: str) -> float | None:
    """Such as ("ttft_s", "p99")."""
    return cast("Mapping[str, float | None]", outcome.figures[group])[name]


def distributions(outcomes: Sequence[Outcome], objective: Objective) -> list[Chart]:
    """Cumulative distributions of TTFT, TPOT and E2E, one line for each run."""
    panels: tuple[tuple[str, str, Callable[[Curves], Sequence[float]], float, float | None], ...] = (
        ("TTFT", "s", lambda curves: curves.ttft_s, 1.0, objective.ttft_s),
        ("TPOT", "ms", lambda curves: curves.tpot_s, 1e3, objective.tpot_s),
        ("E2E", "s", lambda curves: curves.e2e_s, 1.0, objective.e2e_s),
    )
    styles = keys_of(outcomes)
    charts = []
    for name, unit, of, factor, limit in panels:
        series = []
        for outcome in outcomes:
            values = of(outcome.curves) if outcome.curves else ()
            points = [(value * factor, k / max(1, len(values) - 1)) for k, value in enumerate(values)]
            title = f"{key_of(outcome)}, seed {outcome.figures['seed']}"
            series.append(Series(points, f"line {styles[key_of(outcome)]}", title))
        seen = [x for line in series for x, _ in line.points if x > 0] + ([limit * factor] if limit else [])
        narrow = max(seen, default=1.0) < 4 * min(seen, default=1.0)
        axis = (
            linear(f"{name}, {unit}", seen, from_zero=False, least_span=LEAST_SPAN)
            if narrow
            else logarithmic(f"{name}, {unit}", seen)
        )
        guides = [("x", limit * factor)] if limit else []
        charts.append(
            Chart(f"Distribution of {name}", axis, Axis("share of requests", 0, 1, percent=True), series, guides=guides)
        )
    return charts


def trade_off(outcomes: Sequence[Outcome]) -> Chart:
    """P99 TTFT against P99 TPOT: a small dot for each run, a labelled one for each policy's mean, and the frontier."""
    styles = keys_of(outcomes)
    dots: dict[str, list[Point]] = {name: [] for name in styles}
    for outcome in outcomes:
        ttft_s, tpot_s = figure(outcome, "ttft_s", "p99"), figure(outcome, "tpot_s", "p99")
        if ttft_s is not None and tpot_s is not None:
            dots[key_of(outcome)].append((ttft_s, tpot_s * 1e3))
    marks, means = [], {}
    for name, points in dots.items():
        if not points:
            continue
        means[name] = (statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points))
        if len(points) > 1:
            marks += [Mark(point, f"dot faint {styles[name]}", "", name) for point in points]
    for name, mean in means.items():
        title = f"{name}: P99 TTFT {mean[0]:.3g} s, P99 TPOT {mean[1]:.3g} ms"
        marks.append(Mark(mean, f"dot {styles[name]}", name, title))
    everything = [mark.at for mark in marks]
    return Chart(
        "Trade between TTFT and TPOT",
        linear("P99 TTFT, s", [x for x, _ in everything], from_zero=False, least_span=LEAST_SPAN),
        linear("P99 TPOT, ms", [y for _, y in everything], from_zero=False, least_span=LEAST_SPAN),
        [Series(frontier(list(means.values())), "line frontier", "no policy is better in both than these")],
        marks,
    )


def frontier(points: Sequence[Point]) -> list[Point]:
    """Those that no other one beats in both, by their first coordinate; lower is better."""
    best: list[Point] = []
    for point in sorted(set(points)):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def load_over_time(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Chart]]]:
    """For the first run of each policy: KV in use and requests, a line for each endpoint. Axes are common to all."""
    firsts: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.curves is not None and outcome.curves.timeline.times_s:
            firsts.setdefault(key_of(outcome), outcome)
    timelines = {name: outcome.curves.timeline for name, outcome in firsts.items() if outcome.curves is not None}
    if not timelines:
        return []
    end_s = max(timeline.times_s[-1] for timeline in timelines.values())
    requests = {
        name: [
            [running + waiting for running, waiting in zip(*row, strict=True)]
            for row in zip(timeline.running, timeline.waiting, strict=True)
        ]
        for name, timeline in timelines.items()
    }
    most = max((value for rows in requests.values() for row in rows for value in row), default=1)
    fullest = max(value for timeline in timelines.values() for row in timeline.kv_usage_ratio for value in row)
    time_axis = linear("time, s", [end_s])
    kv_axis = Axis("KV cache in use", 0, min(1.0, max(0.05, fullest * 1.05)), percent=True)
    shown = []
    for name, timeline in timelines.items():
        load_axis = linear("requests: running and waiting", [most])
        charts = [
            Chart(
                f"KV in use, {name}", time_axis, kv_axis, _by_endpoint(timeline, timeline.kv_usage_ratio), height=240
            ),
            Chart(f"Requests, {name}", time_axis, load_axis, _by_endpoint(timeline, requests[name]), height=240),
        ]
        shown.append((f"{name}, seed {firsts[name].figures['seed']}", charts))
    return shown


_ROLE_STYLES = {"p": "prefill", "d": "decode"}


def _by_endpoint(timeline: Any, rows: Sequence[Sequence[float]]) -> list[Series]:
    return [
        Series(
            [(time_s, row[k]) for time_s, row in zip(timeline.times_s, rows, strict=True)],
            f"thin {_ROLE_STYLES.get(endpoint[0], 'decode')}",
            endpoint,
        )
        for k, endpoint in enumerate(timeline.endpoints)
    ]
