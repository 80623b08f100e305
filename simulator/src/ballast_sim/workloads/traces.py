"""Read trace files: ours (CSV or JSONL, plain or gzip), the Azure LLM inference CSV, Mooncake's JSONL.

The format is told by the column names of the first row. Every error names file, line, column, and what to do.
"""

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ballast_sim.workloads.request import WorkloadRequest

MOONCAKE_BLOCK_TOKENS = 512
_FORMATS = (
    "arrival_s,input_tokens,output_tokens (ours); TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference); "
    "timestamp,input_length,output_length (Mooncake)"
)


class TraceError(ValueError):
    """A trace that cannot be used."""


@dataclass(slots=True)
class _Row:
    """One row with its place, for errors."""

    path: Path
    line: int
    values: Mapping[str, Any]

    def fail(self, column: str, reason: str) -> TraceError:
        return TraceError(f"{self.path}: line {self.line}: column {column}: {reason}")

    def text(self, column: str) -> str:
        value = self.values.get(column)
        if value is None or value == "":
            raise self.fail(column, "is missing; every row needs it")
        return str(value)

    def number(self, column: str) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.fail(column, f"{text!r} is not a number") from None
        if not math.isfinite(value):
            raise self.fail(column, f"{text!r} is not finite; remove the row")
        if value < 0:
            raise self.fail(column, f"{text!r} is negative; remove the row")
        return value

    def count(self, column: str, lowest: int) -> int:
        value = self.number(column)
        if value != int(value):
            raise self.fail(column, f"{value!r} is not a whole number")
        if value < lowest:
            raise self.fail(column, f"{int(value)} is below {lowest}; remove the row")
        return int(value)

    def optional(self, column: str) -> int | None:
        value = self.values.get(column)
        return None if value is None or value == "" else self.count(column, 0)

    def ids(self, column: str) -> tuple[int, ...] | None:
        value = self.values.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise self.fail(column, "is not a JSON list of block ids") from None
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise self.fail(column, "must be a list of whole numbers, one for each prefix block")
        return tuple(value)


def _ours(row: _Row) -> WorkloadRequest:
    input_tokens = row.count("input_tokens", 1)
    ids, block = row.ids("hash_ids"), row.optional("block_size")
    if ids is not None:
        if not block:
            raise row.fail("block_size", "is missing; a row with hash_ids needs the tokens of one block")
        if len(ids) > -(-input_tokens // block):
            raise row.fail("hash_ids", f"{len(ids)} blocks of {block} are more than {input_tokens} tokens have")
    return WorkloadRequest(
        arrival_s=row.number("arrival_s"),
        input_tokens=input_tokens,
        output_tokens=max(1, row.count("output_tokens", 0)),
        hash_ids=ids,
        block_size=block if ids is not None else None,
        session=row.optional("session"),
        turn=row.optional("turn"),
        client=row.optional("client"),
    )


def _azure(row: _Row) -> WorkloadRequest:
    text = row.text("TIMESTAMP")
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00")[:26])
    except ValueError:
        raise row.fail("TIMESTAMP", f"{text!r} is not a time such as 2023-11-16 18:15:46.6805900") from None
    return WorkloadRequest(
        arrival_s=moment.replace(tzinfo=UTC).timestamp(),
        input_tokens=row.count("ContextTokens", 1),
        output_tokens=max(1, row.count("GeneratedTokens", 0)),
    )


def _mooncake(row: _Row) -> WorkloadRequest:
    ids = row.ids("hash_ids")
    return WorkloadRequest(
        arrival_s=row.number("timestamp") / 1e3,
        input_tokens=row.count("input_length", 1),
        output_tokens=max(1, row.count("output_length", 0)),
        hash_ids=ids,
        block_size=MOONCAKE_BLOCK_TOKENS if ids is not None else None,
    )


_READERS: tuple[tuple[frozenset[str], Callable[[_Row], WorkloadRequest]], ...] = (
    (frozenset({"arrival_s", "input_tokens", "output_tokens"}), _ours),
    (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), _azure),
    (frozenset({"timestamp", "input_length", "output_length"}), _mooncake),
)


def read_trace(path: Path) -> list[WorkloadRequest]:
    """All requests of a trace file, the first one at 0 s. Raises TraceError."""
    requests: list[WorkloadRequest] = []
    reader: Callable[[_Row], WorkloadRequest] | None = None
    start_s = previous_s = 0.0
    for row in _rows(path):
        if reader is None:
            reader = _reader(row)
        request = reader(row)
        if not requests:
            start_s = request.arrival_s
        elif request.arrival_s < previous_s:
            raise row.fail(
                "arrival", f"is earlier than the row before ({request.arrival_s} < {previous_s}); sort the file"
            )
        previous_s = request.arrival_s
        requests.append(_shift(request, start_s))
    if not requests:
        raise TraceError(f"{path}: has no rows; expected columns {_FORMATS}")
    return requests


def _shift(request: WorkloadRequest, start_s: float) -> WorkloadRequest:
    if start_s == 0:
        return request
    return WorkloadRequest(
        arrival_s=request.arrival_s - start_s,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        hash_ids=request.hash_ids,
        block_size=request.block_size,
        session=request.session,
        turn=request.turn,
        client=request.client,
    )


def _reader(row: _Row) -> Callable[[_Row], WorkloadRequest]:
    names = set(row.values)
    for needed, reader in _READERS:
        if needed <= names:
            return reader
    nearest, _ = max(_READERS, key=lambda entry: len(entry[0] & names))
    if nearest & names:
        missing = ", ".join(sorted(nearest - names))
        raise TraceError(f"{row.path}: line {row.line}: column {missing} is missing; found {', '.join(sorted(names))}")
    found = ", ".join(sorted(names)) or "none"
    raise TraceError(f"{row.path}: line {row.line}: unknown columns {found}; expected {_FORMATS}")


def _rows(path: Path) -> Iterator[_Row]:
    try:
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
    except gzip.BadGzipFile as error:
        raise TraceError(f"{path}: is not a sound gzip file: {error}") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _parse(path: Path, lines: io.TextIOWrapper) -> Iterator[_Row]:
    first = lines.readline()
    if not first.lstrip().startswith("{"):
        names = next(csv.reader([first]), [])
        reader = csv.DictReader(lines, fieldnames=[name.strip() for name in names])
        for number, values in enumerate(reader, 2):
            if None in values:
                raise TraceError(f"{path}: line {number}: has more fields than the header's {len(names)} columns")
            yield _Row(path, number, values)
        return
    number = 0
    while first:
        number += 1
        if first.strip():
            try:
                values = json.loads(first)
            except ValueError as error:
                raise TraceError(f"{path}: line {number}: is not JSON: {error}") from None
            if not isinstance(values, dict):
                raise TraceError(f"{path}: line {number}: must be a JSON object, one request")
            yield _Row(path, number, values)
        first = lines.readline()
