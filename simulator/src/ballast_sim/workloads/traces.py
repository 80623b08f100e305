"""Read trace files, plain or gzip; `formats` has the formats.

The column names of the first row decide the format. Every error names file, line, column, and the fix.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ballast_sim.plain_files import require_plain
from ballast_sim.workloads.formats import FORMATS, READERS, Reader, Row, TraceError
from ballast_sim.workloads.request import WorkloadRequest

LONGEST_S = 10 * 366 * 86_400.0
"""No trace is longer: a longer one has milliseconds for seconds."""

LENGTHS_ONLY = frozenset({"input_tokens", "output_tokens"})


class NoArrivals(TraceError):
    """A file of lengths: its rows are to be drawn and paired with arrivals."""


def read_trace(path: Path) -> list[WorkloadRequest]:
    """All requests of a trace file, the first one at 0 s. Raises TraceError; NoArrivals for a file of lengths only."""
    requests: list[WorkloadRequest] = []
    reader: Reader | None = None
    start_s = previous_s = 0.0
    for row in _rows(path):
        if reader is None:
            reader = _reader(row)
        request = reader(row)
        if request is None:
            continue
        if not requests:
            start_s = request.arrival_s
        elif request.arrival_s < previous_s:
            raise row.fail(
                "arrival", f"is earlier than the row before ({request.arrival_s} < {previous_s}); sort the file"
            )
        previous_s = request.arrival_s
        if previous_s - start_s > LONGEST_S:
            raise row.fail("arrival", "is more than ten years after the first row; check the unit of the column")
        requests.append(_shift(request, start_s))
    if not requests:
        raise TraceError(f"{path}: has no rows; expected columns {FORMATS}")
    return requests


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """(input, output) tokens of every row of a file that has no arrivals. Raises TraceError."""
    return [(request.input_tokens, request.output_tokens) for request in map(_lengths, _rows(path))]


def line_of(path: Path, tokens: tuple[int, int]) -> int | None:
    """The first line whose request has these input and output tokens, for errors."""
    reader: Reader | None = None
    for row in _rows(path):
        if reader is None:
            reader = _lengths if set(row.values) >= LENGTHS_ONLY and "arrival_s" not in row.values else _reader(row)
        request = reader(row)
        if request is not None and (request.input_tokens, request.output_tokens) == tokens:
            return row.line
    return None


def _lengths(row: Row) -> WorkloadRequest:
    input_tokens, output_tokens = row.count("input_tokens", 1), max(1, row.count("output_tokens", 0))
    return WorkloadRequest(arrival_s=0.0, input_tokens=input_tokens, output_tokens=output_tokens)


def _shift(request: WorkloadRequest, start_s: float) -> WorkloadRequest:
    return request if start_s == 0 else replace(request, arrival_s=request.arrival_s - start_s)


def _reader(row: Row) -> Reader:
    names = set(row.values)
    for needed, make in READERS:
        if needed <= names:
            return make()
    if names >= LENGTHS_ONLY:
        raise NoArrivals(f"{row.path}: line {row.line}: column arrival_s is missing; this file has lengths only")
    nearest, _ = max(READERS, key=lambda entry: (len(entry[0] & names), -len(entry[0])))
    if nearest & names:
        missing = ", ".join(sorted(nearest - names))
        raise TraceError(f"{row.path}: line {row.line}: column {missing} is missing; found {', '.join(sorted(names))}")
    found = ", ".join(sorted(names)) or "none"
    raise TraceError(f"{row.path}: line {row.line}: unknown columns {found}; expected {FORMATS}")


def _rows(path: Path) -> Iterator[Row]:
    try:
        require_plain(path)
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(stream, encoding="utf-8-sig") as lines:
                yield from _parse(path, lines)
    except EOFError:
        raise TraceError(f"{path}: the gzip file is cut short; fetch it again") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8 text: {error}") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: is not a sound gzip file: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _parse(path: Path, lines: io.TextIOWrapper) -> Iterator[Row]:
    first, above = lines.readline(), 1
    while first and not first.strip():
        first, above = lines.readline(), above + 1
    if "\0" in first:
        raise TraceError(f"{path}: is not a text file; expected CSV or JSONL, plain or gzip")
    if first.lstrip().startswith("["):
        raise TraceError(f"{path}: line {above}: is a JSON array; write one object a line (JSONL)")
    if not first.lstrip().startswith("{"):
        names = next(csv.reader([first]), [])
        reader = csv.DictReader(lines, fieldnames=[name.strip() for name in names])
        try:
            for values in reader:
                number = above + reader.line_num
                if None in values:
                    raise TraceError(f"{path}: line {number}: has more fields than the header's {len(names)} columns")
                yield Row(path, number, values)
        except csv.Error as error:
            raise TraceError(f"{path}: line {above + reader.reader.line_num}: is not CSV: {error}") from None
        return
    number = above - 1
    while first:
        number += 1
        if first.strip():
            try:
                values = json.loads(first)
            except (ValueError, RecursionError) as error:
                raise TraceError(f"{path}: line {number}: is not JSON: {error}") from None
            if not isinstance(values, dict):
                raise TraceError(f"{path}: line {number}: must be a JSON object, one request")
            yield Row(path, number, values)
        first = lines.readline()
