"""The HTML report of a comparison: one file, inline SVG and CSS, nothing loaded from anywhere.

`svg` draws, `charts` chooses what to draw, `page` puts both together.
"""

from ballast_sim.simulation.report.page import render

__all__ = ["render"]
