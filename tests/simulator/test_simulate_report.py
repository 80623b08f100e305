"""The report's drawing: axes, lines, the frontier; and a whole page from runs, whatever their names."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import least_requests
from ballast_sim.simulation.report import render
from ballast_sim.simulation.report.charts import frontier
from ballast_sim.simulation.report.svg import Axis, Chart, Mark, Series, linear, logarithmic
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, run

VALUES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


@given(values=VALUES, log=st.booleans())
def test_an_axis_shows_every_value_with_a_few_round_ticks(values: list[float], log: bool) -> None:
    """Values lie inside; ticks lie inside, ascend, and are neither none nor a crowd."""
    axis = logarithmic("x", values) if log else linear("x", values)
    assert all(0 <= axis.share(value) <= 1 for value in values)
    assert axis.share(min(values)) <= axis.share(max(values))
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert all(axis.low * 0.999 <= tick <= axis.high * 1.001 for tick in ticks)
    assert len(ticks) <= 16
    if not log:
        assert len(ticks) >= 2


@given(points=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_the_frontier_holds_exactly_what_nobody_beats(points: list[tuple[int, int]]) -> None:
    """A point is on it unless another one is at least as good in both and better in one."""
    beaten = {a for a in points for b in points if b != a and b[0] <= a[0] and b[1] <= a[1]}
    assert set(frontier([(float(x), float(y)) for x, y in points])) == set(points) - beaten


def test_a_chart_is_sound_xml_and_cuts_lines_to_its_frame() -> None:
    """Points beyond the axes stay inside the picture; labels are escaped."""
    chart = Chart("a < b & c", Axis("x", 0, 1), Axis("y", 0, 1), [Series([(-5, 0.5), (9, 0.5)], "line c0", "<t>")])
    root = ET.fromstring(chart.render())
    line = next(element for element in root if element.tag == "polyline")
    xs = [float(pair.split(",")[0]) for pair in str(line.get("points")).split()]
    assert xs == [52.0, 506.0]
    assert root.get("aria-label") == "a < b & c"


def test_labels_of_equal_marks_stand_below_each_other() -> None:
    """Two policies with the same figures are both readable."""
    marks = [Mark((0.5, 0.5), "dot c0", name, name) for name in ("one", "two", "three")]
    root = ET.fromstring(Chart("c", Axis("x", 0, 1), Axis("y", 0, 1), marks=marks).render())
    heights = [float(str(text.get("y"))) for text in root if text.get("class", "").startswith("label")]
    assert [round(height - heights[0]) for height in heights] == [0, 13, 26]


def test_a_page_survives_names_that_look_like_markup() -> None:
    """Policy and workload names come from files: nothing of them becomes a tag."""
    setup = Setup(
        machines=parse_shape("1P1D@a100-qwen3-32b"),
        shape="1P1D@a100-qwen3-32b",
        source=WorkloadSource(workload="chat", limit=20),
        objective=Objective(ttft_s=1.0),
    )
    named = replace(least_requests(), name="<script>alert(1)</script>")
    outcomes = [run(RunSpec(setup=setup, policy=policy, curves=True)) for policy in (least_requests(), named)]
    page = render(setup, outcomes, command="ballast simulate '<b>'", date="today")
    assert "No difference: " in page
    assert "<pre>ballast simulate &#x27;&lt;b&gt;&#x27;</pre>" in page
    assert '<td class="best">' not in page  # two runs of one policy: neither wins
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(drawing)


def test_a_difference_of_two_in_a_thousand_looks_like_none() -> None:
    """The axis is wide enough, whatever the values."""
    axis = linear("P99 TTFT, s", [1.000, 1.002], from_zero=False, least_span=0.25)
    assert axis.share(1.002) - axis.share(1.0) < 0.01


def test_a_report_needs_a_run() -> None:
    """It says so."""
    setup = Setup(
        machines=parse_shape("1F@a100-qwen3-32b"), shape="1F@a100-qwen3-32b", source=WorkloadSource(workload="chat")
    )
    with pytest.raises(ValueError, match="at least one run"):
        render(setup, [])


def test_a_page_names_every_threshold_that_its_attainment_counts() -> None:
    """The time between tokens, too."""
    setup = Setup(
        machines=parse_shape("1P1D@a100-qwen3-32b"),
        shape="1P1D@a100-qwen3-32b",
        source=WorkloadSource(workload="chat", limit=5),
        objective=Objective.parse("ttft=1,tpot=0.5,e2e=9,tbt=0.001"),
    )
    outcome = run(RunSpec(setup=setup, policy=least_requests()))
    assert outcome.figures["attainment"] == 0.0
    objective = "<dt>objective</dt><dd>TTFT 1 s, TPOT 0.5 s, E2E 9 s, TBT 0.001 s</dd>"
    assert objective in render(setup, [outcome])
