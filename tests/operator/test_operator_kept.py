"""What is kept of a kind, whatever order a list, a watch and answers to our own writes come in."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_api import names
from ballast_operator.api.kept import Kept
from ballast_operator.kinds import Manifest

LABELS = {"managed": "us", names.LABEL_SERVING_POOL: "chat"}


def thing(
    version: int, *, name: str = "a", uid: str = "1", labels: dict[str, str] | None = None, **content: Any
) -> Manifest:
    metadata = {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version)}
    return {"kind": "Thing", "metadata": {**metadata, "labels": LABELS if labels is None else labels}, **content}


def kept(*items: Manifest, version: int = 10) -> Kept:
    found = Kept({"managed": "us"})
    found.replace(items, version)
    return found


def version_of(found: Kept, name: str = "a") -> int | None:
    item = found.get(("team", name))
    return None if item is None else int(item["metadata"]["resourceVersion"])


def test_a_reader_may_change_what_it_gets() -> None:
    """Copies all the way down."""
    found = kept(thing(5, spec={"x": [1]}))
    item = found.get(("team", "a"))
    assert item is not None
    item["spec"]["x"].append(2)
    assert found.list("team", {})[0]["spec"] == {"x": [1]}


def test_what_is_shared_is_read_once_and_anew_when_it_changes() -> None:
    """A look at each of 500 ServingPools reads 500 routes: each is read from its text once, not 500 times."""
    found = kept(thing(5), thing(6, name="b"))
    before = found.shared("team")
    assert [id(each) for each in found.shared(None)] == [id(each) for each in before]
    found.reported("MODIFIED", thing(11, spec=2))
    found.reported("DELETED", thing(12, name="b"))
    assert [each["spec"] for each in found.shared("team")] == [2]
    assert "spec" not in before[0]


def test_a_change_tells_whether_the_spec_is_as_it_was() -> None:
    """By the generation, which the server counts; another object of the same name has another spec."""

    def versions(*seen: tuple[str, int, int | None]) -> list[bool]:
        found, said = kept(), []
        for uid, version, generation in seen:
            item = thing(version, uid=uid)
            item["metadata"]["generation"] = generation
            change = found.reported("MODIFIED", item)
            assert change is not None
            said.append(change.same_generation)
        return said

    assert versions(("1", 11, 1), ("1", 12, 1), ("1", 13, 2), ("2", 14, 2)) == [False, True, False, False]
    assert versions(("1", 11, None), ("1", 12, None)) == [False, False]


def test_objects_are_found_by_labels_and_namespace_in_order() -> None:
    """Also after their labels have changed."""
    found = kept(thing(1, name="b"), thing(2, name="a"), thing(3, name="c", labels={"managed": "us"}))
    pool = {names.LABEL_SERVING_POOL: "chat"}
    assert [item["metadata"]["name"] for item in found.list("team", pool)] == ["a", "b"]
    assert found.list("lab", pool) == ()
    assert len(found.list(None, {"managed": "us"})) == 3
    change = found.reported("MODIFIED", thing(11, name="a", labels={**LABELS, names.LABEL_SERVING_POOL: "other"}))
    assert change is not None
    assert [labels[names.LABEL_SERVING_POOL] for labels in change.labels] == ["chat", "other"]
    assert [item["metadata"]["name"] for item in found.list("team", pool)] == ["b"]


def test_an_answer_is_seen_at_once_and_its_report_is_no_news() -> None:
    """A look sees its own writes, and is not woken by them."""
    found = kept(thing(5))
    found.written(thing(12, spec=1))
    assert version_of(found) == 12
    assert found.reported("MODIFIED", thing(12, spec=1)) is None
    assert found.reported("MODIFIED", thing(13, spec=2)) is not None
    assert (version_of(found), found.skipped) == (13, False)


def test_what_is_older_than_an_answer_of_ours_does_not_replace_it() -> None:
    """Neither an event on its way nor a list that was read before."""
    found = kept(thing(5))
    found.written(thing(15))
    assert found.reported("MODIFIED", thing(12)) is None
    assert found.reported("DELETED", thing(13)) is None
    found.replace([thing(12)], 14)
    assert version_of(found) == 15
    found.replace([], 14)
    assert version_of(found) == 15
    found.replace([], 16)
    assert version_of(found) is None


@pytest.mark.parametrize("last", ["DELETED", "MODIFIED"])
def test_a_late_answer_does_not_bring_back_what_the_watch_has_overtaken(last: str) -> None:
    """The object was changed or deleted by somebody before our thread could say what it had written."""
    found = kept(thing(5))
    found.reported("MODIFIED", thing(11))
    found.reported(last, thing(12, spec="theirs"))
    found.written(thing(11))
    assert version_of(found) == (None if last == "DELETED" else 12)
    assert not found.skipped


def test_an_answer_without_our_label_is_not_kept() -> None:
    """No watch would ever report its end."""
    found = kept()
    found.written(thing(12, labels={}))
    assert version_of(found) is None


def test_what_we_deleted_is_gone_at_once_and_stays_gone() -> None:
    """Whatever was on its way. Another object of that name is another one."""
    found = kept(thing(5))
    found.deleted(thing(5))
    assert version_of(found) is None
    assert found.reported("MODIFIED", thing(11)) is None
    found.replace([thing(11)], 11)
    assert version_of(found) is None
    assert found.reported("DELETED", thing(12)) is None
    assert found.reported("ADDED", thing(13, uid="2")) is not None
    found.deleted(thing(5))
    assert version_of(found) == 13


def test_a_successor_that_we_made_outlives_the_report_of_our_deletion() -> None:
    """Deleted and made anew within one look."""
    found = kept(thing(5))
    found.deleted(thing(5))
    found.written(thing(12, uid="2"))
    assert found.reported("DELETED", thing(11)) is None
    assert found.reported("ADDED", thing(12, uid="2")) is None
    assert (version_of(found), found.skipped) == (12, False)


def test_a_watch_that_leaves_out_our_own_write_is_found_out() -> None:
    """By a later change of another object, or by a bookmark."""
    for by_bookmark in (False, True):
        found = kept(thing(5))
        found.written(thing(12))
        found.reached(11)
        assert [found.skipped] == [False]
        if by_bookmark:
            found.reached(12)
        else:
            found.reported("ADDED", thing(13, name="b"))
        assert found.skipped
        found.replace([thing(12)], 14)
        assert (version_of(found), found.skipped) == (12, False)


def test_a_list_says_what_came_what_went_and_nothing_of_the_rest() -> None:
    """Changes are those that readers have not seen."""
    found = kept(thing(5), thing(6, name="b"), thing(7, name="c"))
    changes = found.replace([thing(5), thing(20, name="b"), thing(21, name="d")], 22)
    assert {change.name[1]: change.manifest is None for change in changes} == {"b": False, "c": True, "d": False}


def test_a_server_that_was_set_back_is_believed() -> None:
    """Restored from a backup: its versions are lower."""
    found = kept(thing(500), version=900)
    found.replace([thing(300)], 400)
    assert (version_of(found), found.version) == (300, 400)
    assert found.reported("MODIFIED", thing(401)) is not None
