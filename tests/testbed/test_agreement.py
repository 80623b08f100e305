"""Decisions of a cluster and of the simulator side by side: what `make scaling-run` prints."""

from __future__ import annotations

from typing import Any

import pytest

from kit.agreement import Move, agreement, asked_at, moves, table


def record(
    at_s: float, before: tuple[int, int], after: tuple[int, int], reason: str = "RolesFlipped"
) -> dict[str, Any]:
    def layout(counts: tuple[int, int]) -> dict[str, dict[str, int]]:
        return {"flex": {"prefill": counts[0], "decode": counts[1]}}

    return {"at_s": at_s, "from": layout(before), "to": layout(after), "changes": before != after, "reason": reason}


CLUSTER = moves([record(990.0, (1, 1), (1, 1)), record(1060.0, (1, 1), (3, 1)), record(1180.0, (3, 1), (1, 3))], 1000.0)
SIMULATOR = [Move(0.0, "1P1D", "start"), Move(70.0, "3P1D", "ScaledUp"), Move(180.0, "1P3D", "RolesFlipped")]


def test_moves_are_the_first_layout_and_each_change() -> None:
    assert [
        Move(0.0, "1P1D", "start"),
        Move(60.0, "3P1D", "RolesFlipped"),
        Move(180.0, "1P3D", "RolesFlipped"),
    ] == CLUSTER
    assert [asked_at(CLUSTER, at_s) for at_s in (-5.0, 59.0, 60.0, 500.0)] == ["1P1D", "1P1D", "3P1D", "1P3D"]


@pytest.mark.parametrize(("within_s", "share"), [(0.0, 0.95), (5.0, 0.975), (15.0, 1.0)])
def test_agreement_is_the_share_of_time_in_which_both_ask_for_the_same(within_s: float, share: float) -> None:
    assert agreement(CLUSTER, SIMULATOR, 200.0, within_s=within_s) == pytest.approx(share)
    assert agreement(CLUSTER, CLUSTER, 200.0) == 1.0


def test_the_table_has_both_in_order_of_time() -> None:
    lines = table(CLUSTER, SIMULATOR).splitlines()
    assert len(lines) == 2 + 6
    assert lines[4:6] == ["| 60 | 3P1D |  | RolesFlipped |", "| 70 |  | 3P1D | ScaledUp |"]
