"""Panels and dashboards in few words: what all of them share is said here once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shared
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as query

SCOPE = 'namespace=~"$namespace",serving_pool=~"$serving_pool"'
"""Selects the ServingPools that are chosen above a dashboard."""

Shape: TypeAlias = Literal["lines", "stacked", "stat", "states", "heatmap", "table"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `expressions` are pairs of PromQL and legend."""

    title: str
    about: str
    """What it shows and what is good; what is bad; what to do."""
    expressions: Sequence[tuple[str, str]]
    unit: str = "short"
    shape: Shape = "lines"
    width: int = 12
    least: float | None = 0
    """Lower end of its axis; None: of its values."""
    most: float | None = None
    """Upper end of its axis; None: of its values."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard: rows of panels by title."""

    name: str
    """Of its file, and its uid."""
    title: str
    about: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    scoped: bool = True
    """Whether namespace and ServingPool are chosen above it."""

    @property
    def panels(self) -> list[Panel]:
        """All of them."""
        return [panel for _, panels in self.rows for panel in panels]


def metric(name: str, *matchers: str) -> str:
    """A metric of the ServingPools that are chosen, with further matchers."""
    return f"{name}{{{','.join((SCOPE, *matchers))}}}"


def rate(name: str, *matchers: str) -> str:
    """Its growth by the second."""
    return f"rate({metric(name, *matchers)}[$__rate_interval])"


def quantile(q: float, name: str, by: str = "") -> str:
    """A quantile of a histogram, by a label or of all."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q:g}, sum by ({labels}) ({rate(f'{name}_bucket')}))"


def ratio(above: str, below: str) -> str:
    """A share; no data where nothing is below."""
    return f"{above} / ({below} > 0)"


def total(name: str, *matchers: str, by: str = "") -> str:
    """The sum of a counter's growth, by labels or of all."""
    return f"sum by ({by}) ({rate(name, *matchers)})" if by else f"sum({rate(name, *matchers)})"


def fleetwide(name: str, *matchers: str, by: str = "") -> str:
    """A value that each gateway exports of the whole fleet, once: the largest that one of them sees."""
    labels = f"namespace, serving_pool, {by}" if by else "namespace, serving_pool"
    return f"max by ({labels}) ({metric(name, *matchers)})"


def json_of(made: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    built = (
        dashboard.Dashboard(made.title)
        .uid(f"ballast-{made.name}")
        .description(made.about)
        .tags(["ballast"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(_others())
    )
    if made.scoped:
        info = "ballast_gateway_build_info"
        built = built.with_variable(_variable("namespace", f"label_values({info}, namespace)"))
        built = built.with_variable(
            _variable("serving_pool", f'label_values({info}{{namespace=~"$namespace"}}, serving_pool)')
        )
    for title, panels in made.rows:
        built = built.with_row(dashboard.Row(title))
        for panel in panels:
            built = built.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(built.build()) + "\n"


def _others() -> dashboard.DashboardLink:
    """Leads to the other dashboards, with the same time and variables."""
    link = dashboard.DashboardLink("Ballast").type(model.DashboardLinkType.DASHBOARDS).tags(["ballast"])
    return link.as_dropdown(True).keep_time(True).include_vars(True)


def _variable(name: str, values: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name)
        .datasource(_SOURCE)
        .query(values)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .include_all(True)
        .all_value(".*")
        .multi(True)
        .current(model.VariableOption(text="All", value="$__all", selected=True))
    )


_SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


_Builder: TypeAlias = timeseries.Panel | stat.Panel | statushistory.Panel | heatmap.Panel | table.Panel


def _shaped(shape: Shape) -> _Builder:
    match shape:
        case "stat":
            return stat.Panel()
        case "states":
            return (
                statushistory.Panel()
                .color_scheme(_color(model.FieldColorModeId.CONTINUOUS_GR_YL_RD))
                .show_value(shared.VisibilityMode.NEVER)
            )
        case "heatmap":
            return heatmap.Panel()
        case "table":
            return table.Panel()
        case "stacked":
            stacked = common.StackingConfig().mode(shared.StackingMode.NORMAL)
            return timeseries.Panel().stacking(stacked).fill_opacity(30)
        case "lines":
            return timeseries.Panel().fill_opacity(5)


def _color(mode: model.FieldColorModeId) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(mode)


def _panel(panel: Panel) -> _Builder:
    made = _shaped(panel.shape).title(panel.title).description(panel.about).datasource(_SOURCE).unit(panel.unit)
    made.span(panel.width).height(8)
    if panel.least is not None:
        made.min(panel.least)
    if panel.most is not None:
        made.max(panel.most)
    for number, (expression, legend) in enumerate(panel.expressions):
        asked = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number))
        if panel.shape == "table":
            asked.instant().format(query.PromQueryFormat.TABLE)
        elif panel.shape == "heatmap":
            asked.format(query.PromQueryFormat.HEATMAP)
        made.with_target(asked)
    return made
