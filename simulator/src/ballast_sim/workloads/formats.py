"""Trace formats: the columns that identify each, and how a row becomes a request.

Formats: ours (CSV or JSONL), the Azure LLM inference CSV, Mooncake's JSONL, BurstGPT's CSV, Qwen-Bailian's JSONL.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from ballast_sim.workloads.request import MOONCAKE_BLOCK_TOKENS, WorkloadRequest

BAILIAN_BLOCK_TOKENS = 16
LARGEST_COUNT = 10**12
SHOWN_CHARACTERS = 40
FORMATS = (
    "arrival_s,input_tokens,output_tokens (ours); TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference); "
    "timestamp,input_length,output_length (Mooncake; with chat_id,parent_chat_id: Qwen-Bailian); "
    "Timestamp,Request tokens,Response tokens (BurstGPT)"
)


class TraceError(ValueError):
    """A trace that cannot be used."""


@dataclass(slots=True)
class Row:
    """One row with its file and line, for errors."""

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
        shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
        try:
            value = float(text)
        except ValueError:
            raise self.fail(column, f"{shown!r} is not a number") from None
        if not math.isfinite(value):
            raise self.fail(column, f"{shown!r} is not finite; remove the row")
        if value < 0:
            raise self.fail(column, f"{shown!r} is negative; remove the row")
        return value

    def count(self, column: str, lowest: int) -> int:
        value = self.number(column)
        if value != int(value):
            raise self.fail(column, f"{value!r} is not a whole number")
        if value < lowest:
            raise self.fail(column, f"{int(value)} is below {lowest}; remove the row")
        if value > LARGEST_COUNT:
            raise self.fail(column, f"{value:g} is above {LARGEST_COUNT:g}; remove the row")
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


def _ours(row: Row) -> WorkloadRequest | None:
    """A row with an outcome is a gateway's: one whose output it did not see is left out, unless it was to have none."""
    output_tokens, max_tokens = row.count("output_tokens", 0), row.optional("max_tokens")
    if row.values.get("outcome") and output_tokens == 0 and max_tokens != 1:
        return None
    number = row.optional("class")
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
        output_tokens=max(1, output_tokens),
        hash_ids=ids,
        block_size=block if ids is not None else None,
        session=row.optional("session"),
        turn=row.optional("turn"),
        client=row.optional("client"),
        max_tokens=max_tokens or None,
        traffic_class="" if number is None else f"class-{number}",
    )


def _azure(row: Row) -> WorkloadRequest:
    text = row.text("TIMESTAMP")
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise row.fail("TIMESTAMP", f"{text!r} is not a time such as 2023-11-16 18:15:46.6805900") from None
    return WorkloadRequest(
        arrival_s=(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(),
        input_tokens=row.count("ContextTokens", 1),
        output_tokens=max(1, row.count("GeneratedTokens", 0)),
    )


def _mooncake(row: Row) -> WorkloadRequest:
    ids = row.ids("hash_ids")
    return WorkloadRequest(
        arrival_s=row.number("timestamp") / 1e3,
        input_tokens=row.count("input_length", 1),
        output_tokens=max(1, row.count("output_length", 0)),
        hash_ids=ids,
        block_size=MOONCAKE_BLOCK_TOKENS if ids is not None else None,
    )


@dataclass(slots=True)
class _Sessions:
    """Numbers conversations in order of appearance, by any name, and counts their turns."""

    numbers: dict[object, int] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)

    def next_turn(self, name: object) -> tuple[int, int]:
        """The session's number and this request's turn in it."""
        number = self.numbers.setdefault(name, len(self.numbers))
        self.turns[number] = self.turns.get(number, -1) + 1
        return number, self.turns[number]


def _burstgpt() -> "Reader":
    """Seconds; the third release has sessions. A response of 0 tokens is a request that failed: left out."""
    sessions = _Sessions()

    def read(row: Row) -> WorkloadRequest | None:
        arrival_s, output_tokens = row.number("Timestamp"), row.count("Response tokens", 0)
        if output_tokens == 0:
            return None
        name = row.values.get("Session ID")
        if isinstance(name, list | dict):
            raise row.fail("Session ID", "must be a number or a text")
        session, turn = sessions.next_turn(name) if name not in (None, "") else (None, None)
        return WorkloadRequest(
            arrival_s=arrival_s,
            input_tokens=row.count("Request tokens", 1),
            output_tokens=output_tokens,
            session=session,
            turn=turn,
        )

    return read


def _bailian() -> "Reader":
    """Seconds, blocks of 16 tokens. A conversation is what hangs together by parent_chat_id (-1: it begins here)."""
    roots: dict[str, str] = {}
    sessions = _Sessions()

    def read(row: Row) -> WorkloadRequest:
        chat, parent = row.text("chat_id"), row.text("parent_chat_id")
        root = chat if parent == "-1" else roots.get(parent, parent)
        roots[chat] = root
        session, turn = sessions.next_turn(root)
        ids, input_tokens = row.ids("hash_ids"), row.count("input_length", 1)
        if ids is not None:
            ids = ids[: -(-input_tokens // BAILIAN_BLOCK_TOKENS)]
        return WorkloadRequest(
            arrival_s=row.number("timestamp"),
            input_tokens=input_tokens,
            output_tokens=max(1, row.count("output_length", 0)),
            hash_ids=ids,
            block_size=BAILIAN_BLOCK_TOKENS if ids is not None else None,
            session=session,
            turn=turn,
        )

    return read


Reader: TypeAlias = Callable[[Row], WorkloadRequest | None]
"""A row's request; None for a row that is left out."""

READERS: tuple[tuple[frozenset[str], Callable[[], Reader]], ...] = (
    (frozenset({"arrival_s", "input_tokens", "output_tokens"}), lambda: _ours),
    (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), lambda: _azure),
    (frozenset({"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"}), _bailian),
    (frozenset({"timestamp", "input_length", "output_length"}), lambda: _mooncake),
    (frozenset({"Timestamp", "Request tokens", "Response tokens"}), _burstgpt),
)
"""Columns that a format needs, and a fresh reader of it; the first that fits is taken."""
