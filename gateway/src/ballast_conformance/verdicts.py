"""The words of a judgement, and how a trial speaks them."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    """How much the protocol wants it (RFC 2119). Where it is silent on what proxies and clients rely on: SHOULD."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


class Verdict(StrEnum):
    """What became of a case."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


class Failed(Exception):
    """The picker did something else than the case expects."""

    def __init__(self, expected: str, seen: object) -> None:
        super().__init__(expected)
        self.expected = expected
        self.seen = str(seen)


class Skipped(Exception):
    """The case cannot be tried here; says why."""


def expect(fulfilled: bool, expected: str, seen: object) -> None:
    """Raise `Failed` unless fulfilled."""
    if not fulfilled:
        raise Failed(expected, seen)
