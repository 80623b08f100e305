"""How `ballast top` looks: the rows of a snapshot as tables of 80 columns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ballast_gateway.live.rows import AttainmentRow, EndpointRow, Frame, RequestRow

WIDTH: Final = 80
_SHOWN_REQUESTS: Final = 8
_ROLES: Final = ("prefill", "flexible", "decode")
_NUMBERS: Final = re.compile(r"(\d+)")


def narrow_console() -> Console:
    """Standard output, as wide as it is, but 80 columns at least where it is no terminal."""
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=WIDTH)


def screen(frame: Frame, before: Frame | None, height: int | None) -> Group:
    """One snapshot; rates since the one `before` it. `height`: rows of the terminal, None for all that there is."""
    parts: list[RenderableType] = [_head(frame, before)]
    if frame.attainment:
        parts.append(_classes(frame.attainment))
    room = None if height is None else max(3, height - 14 - len(frame.attainment or ()) - _SHOWN_REQUESTS)
    parts += _endpoints(frame.endpoints, room)
    parts.append(_requests(frame))
    return Group(*parts)


def plain(text: str) -> str:
    """A name as it may be printed: no control characters, no changes of direction."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(each)[0] == "C" else each for each in text)


def _head(frame: Frame, before: Frame | None) -> Text:
    about, said = frame.about, Text()
    if about is not None:
        said.append(
            plain(" ".join(filter(None, (about.whose if about.together else about.name or about.whose, about.models))))
            + "\n",
            style="bold",
        )
        said.append(plain(", ".join(f"{kind} {policy}" for kind, policy in about.policies.items())) + "\n", style="dim")
        if about.together:
            said.append(f"asked by {plain(about.name)}, which hears {about.agents} agents\n", style="dim")
        elif about.view:
            leads = "leads" if about.leads else "does not lead"
            said.append(f"{leads}; hears {about.peers} other gateways, {about.agents} agents\n", style="dim")
    said.append(f"in flight {frame.own}")
    if frame.others:
        said.append(f" + {frame.others} of others")
    said.append(f"   waiting {frame.waiting}")
    if frame.waiting:
        said.append(f" ({_seconds(frame.wait_s)})")
    moves = [row for row in frame.requests if row.target]
    if moves:
        said.append(f"   moving {len(moves)}", style="yellow")
    if before is not None and frame.unix_s > before.unix_s:
        span_s = frame.unix_s - before.unix_s
        ended = frame.ended - before.ended
        said.append(f"\narriving {max(0, ended + frame.own - before.own) / span_s:.1f}/s")
        said.append(f"   finished {max(0, ended) / span_s:.1f}/s")
    else:
        said.append(f"\nfinished {frame.ended}")
    steps = [row.step_ms for row in frame.endpoints if row.step_ms is not None]
    if steps:
        mean = sum(steps) / len(steps)
        said.append(f"   step max/mean {max(steps) / mean:.2f} of {mean:.1f} ms")
    return said


def _classes(rows: Sequence[AttainmentRow]) -> Table:
    table = _table("CLASS", "WANT", "60 S", "REQUESTS", "300 S", "REQUESTS", name_width=26)
    for row in rows:
        cells: list[Text | str] = [_name(row.name), f"{row.target:.1%}"]
        for tally in (row.minute, row.five_minutes):
            known = tally.within + tally.outside
            share = tally.within / known if known else None
            style = "" if share is None else "green" if share >= row.target else "red"
            cells += [Text("-" if share is None else f"{share:.1%}", style), str(known + tally.unknown)]
        table.add_row(*cells)
    return table


def _endpoints(rows: Sequence[EndpointRow], room: int | None) -> list[RenderableType]:
    place = {role: number for number, role in enumerate(_ROLES)}
    ordered = sorted(rows, key=lambda row: (place.get(row.role, 1), _natural(row.name)))
    table = _table("ENDPOINT", "STATE", "PROMPTS", "DECODES", "TOKENS", "KV", "QUEUE", "PREDICTED", name_width=24)
    shown = ordered if room is None else ordered[:room]
    for _, group in groupby(shown, key=lambda row: row.role):
        for row in group:
            busy = row.prefill_ms if row.step_ms is None else row.step_ms
            table.add_row(
                _name(row.name),
                Text(plain(row.state), "" if row.state == "ready" else "red"),
                str(row.prefills),
                str(row.decodes),
                _count(row.decode_tokens or row.prefill_tokens),
                "-" if row.kv_ratio is None else f"{row.kv_ratio:.0%}",
                "-" if row.waiting is None else str(row.waiting),
                "-" if busy is None else f"{busy:.1f} ms",
            )
        table.add_section()
    more = len(ordered) - len(shown)
    return [table, *([Text(f"and {more} more endpoints", "dim")] if more else [])]


def _requests(frame: Frame) -> Table:
    total = frame.own + frame.others
    table = _table(f"NEWEST OF {total} IN FLIGHT", "PHASE", "PROMPT", "AGE", "WHERE", name_width=24)
    table.columns[-1].justify = "left"
    for row in sorted(frame.requests, key=lambda each: -each.arrived_ms)[:_SHOWN_REQUESTS]:
        age_s = max(0.0, frame.unix_s - row.arrived_ms / 1e3)
        phase = "moves" if row.target else plain(row.phase)
        table.add_row(_name(row.id), phase, str(row.prompt_tokens), _seconds(age_s), plain(_where(row)))
    return table


def _where(row: RequestRow) -> str:
    return " > ".join(filter(None, (row.prefill, row.decode, row.target)))


def _table(first: str, *others: str, name_width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=False, title_justify="left")
    table.add_column("\n" + first, max_width=name_width, no_wrap=True, overflow="ellipsis")
    for name in others:
        justify = "left" if name in ("STATE", "PHASE") else "right"
        table.add_column("\n" + name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    return table


def _name(text: str) -> Text:
    return Text(plain(text), no_wrap=True, overflow="ellipsis")


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdecimal() else 0, part) for part in _NUMBERS.split(name)]


def _count(number: int) -> str:
    return (
        str(number) if number < 10_000 else f"{number / 1e3:.0f} k" if number < 1_000_000 else f"{number / 1e6:.1f} M"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
