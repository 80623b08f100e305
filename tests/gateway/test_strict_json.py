"""JSON of clients: what is read equals what a strict, slow reference reads, and nothing costs more than its bound.

1. What `parse` accepts, Python's `json` reads alike, and no name stands twice in an object.
2. Valid JSON within the bounds is accepted.
3. Counts are exact outside strings, whatever stands in them and wherever a window ends.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_gateway import strict_json
from ballast_gateway.strict_json import InvalidJson, measure, measure_exactly, parse

TEXT = st.text('a:,[{]}"\\\n\u00e9\u4e2d\U0001f600', max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def written(document: object, **how: Any) -> bytes:
    return json.dumps(document, **how).encode()


def strictly(raw: bytes) -> Any:
    """The reference. Raises ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a name stands twice")
        return dict(pairs)

    return json.loads(raw.decode(), object_pairs_hook=once)


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_written_is_read_again(document: object, ascii_: bool, indent: int | None) -> None:
    raw = written(document, ensure_ascii=ascii_, indent=indent)
    assert parse(raw) == document
    assert strictly(strict_json.dump(document)) == document


@given(st.text('{}[]":,\\ua0123e.-tn \n', max_size=40))
def test_whatever_is_accepted_the_reference_reads_alike(text: str) -> None:
    raw = text.encode()
    try:
        found = parse(raw)
    except InvalidJson:
        return
    assert found == strictly(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","mod\\u0065l":"a"}',
        b'{"x":[{"y":{"a":1,"b":2,"a":1}}]}',
        b'{"x":"\\u003a","a":1,"a":1}',
        b'{"x":"\\u003A\\u003A","a":{"b":":","c":1},"a":1}',
        b'{"a":1,"a":":"}',
        b'{"":1,"":2}',
    ],
)
@pytest.mark.parametrize("padding", [b"", b',"pad":[%b1]' % (b"1," * 500_000)], ids=["small", "large"])
def test_a_name_that_stands_twice_is_refused(raw: bytes, padding: bytes) -> None:
    """vLLM takes the last one, other parsers the first or none: what was decided on must be what is read."""
    with pytest.raises(InvalidJson, match="stands twice in one object"):
        parse(raw[:-1] + padding + b"}")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}',
        b'{"a":"\\u003a:","b":"a:1,\\"a\\":2"}',
        b'{ "a" : 1e5, "A" : 1 }',
        b'{"a":"\\\\u003a"}',
    ],
)
def test_a_name_that_stands_once_in_each_object_is_not(raw: bytes) -> None:
    assert parse(raw) == strictly(raw)


@given(JSON, st.integers(1, 9))
def test_counts_outside_strings_are_exact_wherever_windows_end(document: object, window: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(strict_json, "_WINDOW_BYTES", window)
        found = measure_exactly(written(document, ensure_ascii=False))
        assert measure(written(document)) == strict_json._count(
            len(written(document)), written(document).translate(None, strict_json._NO_STRUCTURE)
        )
    skeleton = written(_without_strings(document))
    assert (found.commas, found.colons, found.brackets) == (
        skeleton.count(b","),
        skeleton.count(b":"),
        skeleton.count(b"[") + skeleton.count(b"{"),
    )


def _without_strings(value: object) -> object:
    match value:
        case str():
            return ""
        case list(items):
            return [_without_strings(item) for item in items]
        case dict(fields):
            return {str(number): _without_strings(item) for number, item in enumerate(fields.values())}
        case _:
            return value


@pytest.mark.parametrize("indent", [None, 1])
def test_a_large_body_is_read_in_pieces_with_the_same_outcome(indent: int | None) -> None:
    text = 'He said: "a,b:[{", ' * 9_000
    document = {"model": "m:n", "prompt": list(range(-3, 500_000)), "f": [1.5, text, {"a": [[]]}], "": 10**30}
    assert parse(written(document, indent=indent)) == document


@pytest.mark.parametrize("cut", ["1,,2", "1 2", ",1", "1,", "1-", "01"])
def test_a_list_of_numbers_in_pieces_is_as_strict(cut: str) -> None:
    numbers = ",".join(["17"] * 200_000)
    for body in (f"{cut},{numbers}", f"{numbers},{cut}", f"{numbers},{cut},{numbers}"):
        with pytest.raises(InvalidJson):
            parse(f'{{"prompt":[{body}]}}'.encode())


HOLLOW = {
    "lists": b"[],",
    "objects": b"{},",
    "objects with a name": b'{"a":1},',
    "short texts": b'"ab",',
    "numbers": b"0,",
}


@pytest.mark.parametrize("piece", HOLLOW.values(), ids=HOLLOW)
def test_values_are_bounded_before_any_is_made(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of `[]` were 5.6 million lists: 3.7 s, 400 MiB."""
    monkeypatch.setattr(strict_json, "_decode", lambda raw: pytest.fail("parsed"))
    with pytest.raises(InvalidJson, match="too many values"):
        parse(b'{"model":"m","x":[' + piece * (8 * 1024 * 1024 // len(piece)) + b"0]}")


def test_a_million_token_ids_and_eight_mib_of_code_are_honest() -> None:
    ids = {"model": "m", "prompt": list(range(1_000_000))}
    assert parse(written(ids)) == ids
    code = {"model": "m", "prompt": 'def f(x): return {"a": [x, {"b": (x,)}]}\n' * 180_000}
    assert parse(written(code)) == code


def test_depth_is_bounded_alike_on_every_python() -> None:
    at = strict_json.MOST_DEPTH - 1
    assert parse(b'{"a":' + b"[" * at + b"]" * at + b"}")
    for deeper in (at + 1, 900, 4_000):
        with pytest.raises(InvalidJson, match="nested too deeply"):
            parse(b'{"a":' + b"[" * deeper + b"]" * deeper + b"}")


@pytest.mark.parametrize(
    ("raw", "says", "field"),
    [
        (b'{"a":NaN}', "NaN is no JSON number (byte 5)", None),
        (b'{"a":[-Infinity]}', "-Infinity is no JSON number (byte 6)", None),
        (b'{"a":1,"b":{"c":1e999}}', "b: the number is too large", "b"),
        (b'{"b":1e999,"a":}', "the body: the number is too large", None),
        (b'{"a":"\\ud83d"}', "half of a surrogate pair", None),
        (b'{"a":"\xff"}', "not UTF-8 text (byte 6)", None),
        (b'{"a":1', "Input data was truncated", None),
    ],
)
def test_an_error_says_what_and_where(raw: bytes, says: str, field: str | None) -> None:
    with pytest.raises(InvalidJson) as caught:
        parse(raw)
    assert says in str(caught.value)
    assert caught.value.field == field


def test_an_engines_lone_surrogate_stays_an_escape() -> None:
    assert strict_json.dump({"a": "\ud800"}) == b'{"a":"\\ud800"}'
