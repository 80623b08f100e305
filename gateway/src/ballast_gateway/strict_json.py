"""JSON from clients: strict, bounded in time and memory, and the same to all who read it (ADR 14).

A body's cost is in its values, not in its bytes: 16 MiB of `[]` are five million lists. So structure is counted before
anything is parsed: first every comma, colon and bracket, which bounds the values from above in a millisecond for each
two MiB; only where that is too much, those outside strings alone. msgspec parses; then no name may stand twice in an
object, because parsers differ in which of the two they take.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np

JsonObject: TypeAlias = dict[str, Any]

MOST_WORK: Final = 400_000
"""Values that one body may hold; each list, object and name counts as `_HEAVY`."""
MOST_NUMBERS: Final = 1_200_000
"""Values in a field that is one list of numbers, such as token ids; a million of them fit."""
MOST_DEPTH: Final = 128
"""Levels of lists and objects."""
_HEAVY: Final = 20
"""A list, an object or a name takes some ten times as long as a number, and garbage collection adds to that."""
_WHOLE_WORK: Final = 100_000
"""Up to this a body is parsed by one call; beyond, field by field and lists of numbers in pieces. A call holds the
interpreter's lock, and the event loop waits for it several times in each answer."""
_WINDOW_BYTES: Final = 256 * 1024
_NAMED_BYTES: Final = 64 * 1024
"""In bodies up to this size an error names what stands twice: that takes a slow parser."""

_QUOTE, _BACKSLASH = b'"\\'
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b",:[{"))
_OF_NUMBERS: Final = b"0123456789+-.eE, \t\r\n"
_ESCAPED_COLON: Final = b"\\u003"
_CONSTANT: Final = re.compile(rb"-?(?:NaN|Infinity)")
_POSITION: Final = re.compile(r" \(byte ([0-9]+)\)$")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decode: Final = msgspec.json.Decoder().decode
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode
_decode_leniently: Final = json.JSONDecoder(parse_constant=_no_constant).decode
_encode_leniently: Final = json.JSONEncoder(separators=(",", ":")).encode


class InvalidJson(ValueError):
    """Not the JSON that is taken here. `field` names the top-level field at fault, where that is known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Size(NamedTuple):
    """How much there is in a body. Counted with what stands in strings, these are bounds from above."""

    length: int
    """Bytes."""
    commas: int
    colons: int
    brackets: int
    """Opening ones: lists and objects."""

    @property
    def work(self) -> int:
        """What parsing costs, in values; one is some 40 ns."""
        return 1 + self.commas + self.heavy

    @property
    def heavy(self) -> int:
        """The share of lists, objects and names in `work`."""
        return _HEAVY * (self.brackets + self.colons)

    @property
    def held_bytes(self) -> int:
        """Memory of the body, its values and a copy on its way to an engine, about; for text some five times it."""
        return 2 * self.length + 64 * (self.commas + 4 * self.brackets + 2 * self.colons)


def measure(raw: bytes) -> Size:
    """The size of a body, whatever its bytes. Takes about 0.5 ns a byte."""
    size = _count(len(raw), raw[:_WINDOW_BYTES].translate(None, _NO_STRUCTURE))
    for start in range(_WINDOW_BYTES, len(raw), _WINDOW_BYTES):
        size = _sum(size, raw[start : start + _WINDOW_BYTES])
    return size


def parse(raw: bytes, size: Size | None = None) -> Any:
    """The value of a JSON text in UTF-8, which must be an object where it is large; `size` is that of `measure`.

    Raises `InvalidJson`. Whole numbers are exact. NaN, infinities, numbers beyond a double, lone surrogates, names that
    stand twice in an object, more than `MOST_DEPTH` levels, `MOST_WORK` or `MOST_NUMBERS` are refused.
    """
    size = measure(raw) if size is None else size
    try:
        if size.work <= _WHOLE_WORK:
            document = _decode(raw)
            again = dump(document)
            if again == raw and size.brackets <= MOST_DEPTH:
                return document  # most clients write without blanks: nothing was dropped
            doubled = again.count(b":") != size.colons
        else:
            document, colons = _by_fields(raw, size)
            doubled = colons != size.colons
    except UnicodeDecodeError:
        raise InvalidJson(_not_utf8(raw)) from None
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError:
        field = _field_at_fault(raw)
        raise InvalidJson(
            f"{field or 'the body'}: the number is too large, or has thousands of digits", field
        ) from None
    except msgspec.DecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {_reason(raw, str(error))}") from None
    if size.brackets > MOST_DEPTH and _is_deeper(document, MOST_DEPTH):
        raise _too_deep()
    if doubled or _ESCAPED_COLON in raw:
        _refuse_doubles(raw, document)
    return document


def _by_fields(raw: bytes, size: Size) -> tuple[JsonObject, int]:
    """The document, and the colons in it when it is written anew."""
    if not raw.lstrip(b" \t\r\n").startswith(b"{"):
        raise InvalidJson("the body must be a JSON object")
    if size.work > MOST_WORK:
        exact = measure_exactly(raw)
        if exact.heavy > MOST_WORK or exact.commas > MOST_NUMBERS:
            raise _too_many()
    document: JsonObject = {}
    colons = 0
    for name, part in _decode_fields(raw).items():
        value = bytes(part)
        if len(value) > _WINDOW_BYTES and value.startswith(b"[") and not value[1:-1].strip(_OF_NUMBERS):
            document[name] = _numbers(value)
            more = 0
        else:
            if value.count(b",") > MOST_WORK and measure_exactly(value).work > MOST_WORK:
                raise _too_many()
            document[name] = _decode(value)
            more = dump(document[name]).count(b":")
        colons += 1 + name.count(":") + more
    return document, colons


def _numbers(text: bytes) -> list[Any]:
    """A list of numbers, read in pieces: each comma in it parts two."""
    values: list[Any] = []
    start, end = 1, len(text) - 1
    while True:
        cut = text.find(b",", start + _WINDOW_BYTES, end)
        values += _decode(b"[%b]" % text[start : end if cut < 0 else cut])
        if cut < 0:
            return values
        start = cut + 1


def load(raw: bytes) -> Any:
    """An engine's JSON, in UTF-8; lone surrogates may be in it. Raises `ValueError` and `RecursionError`."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(raw.decode("utf-8", "surrogatepass"))


def dump(document: object) -> bytes:
    """The document as JSON without blanks. A lone surrogate, which an engine may send, stays an escape."""
    try:
        return _encode(document)
    except UnicodeEncodeError:
        return _encode_leniently(document).encode()


def measure_exactly(raw: bytes) -> Size:
    """The size of valid JSON without what stands in strings. Stops soon after `MOST_WORK`.

    Works in windows on numpy, which lets other threads run meanwhile; some 3 ns a byte. Few bodies need it, and
    agents in engine pods are small without it.
    """
    import numpy as np

    size = Size(len(raw), 0, 0, 0)
    inside, escaped = np.uint8(0), False
    for start in range(0, len(raw), _WINDOW_BYTES):
        window = np.frombuffer(raw, np.uint8, min(_WINDOW_BYTES, len(raw) - start), start)
        quotes = (window == _QUOTE).view(np.uint8)
        if escaped:
            quotes[0] = 0
        escapes = _escapes(window, escaped)
        escaped = bool(escapes.size) and int(escapes[-1]) == window.size - 1
        quotes[(escapes + 1)[: escapes.size - escaped]] = 0
        quotes[0] ^= inside
        within = np.bitwise_xor.accumulate(quotes)
        inside = within[-1]
        size = _sum(size, window[within == 0].tobytes())
        if size.heavy > MOST_WORK or size.commas > MOST_NUMBERS:
            break
    return size


def _count(length: int, structure: bytes) -> Size:
    commas, colons = structure.count(b","), structure.count(b":")
    return Size(length, commas, colons, len(structure) - commas - colons)


def _sum(size: Size, more: bytes) -> Size:
    length, commas, colons, brackets = size
    added = _count(0, more.translate(None, _NO_STRUCTURE))
    return Size(length, commas + added.commas, colons + added.colons, brackets + added.brackets)


def _escapes(window: np.ndarray[Any, np.dtype[np.uint8]], escaped: bool) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Where a backslash escapes what follows it: in a run of them every other one, from its first on."""
    import numpy as np

    at = np.flatnonzero(window == _BACKSLASH)
    if escaped:
        at = at[at != 0]
    if not at.size:
        return at
    number = np.arange(at.size)
    begins = np.ones(at.size, bool)
    begins[1:] = np.diff(at) != 1
    first = np.maximum.accumulate(np.where(begins, number, 0))
    escapes: np.ndarray[Any, np.dtype[np.intp]] = at[(number - first) % 2 == 0]
    return escapes


def _refuse_doubles(raw: bytes, document: object) -> None:
    """Raise if a name stands twice in an object, of which the parser has kept one.

    Written anew the document has as many colons as the text: a field that was dropped took its colon along. Only a
    colon that a string writes as an escape spoils that count, so then names are counted one by one.
    """
    if measure_exactly(raw).colons != _names(document):
        name = _first_double(raw) if len(raw) <= _NAMED_BYTES else None
        raise InvalidJson(f"{'a name' if name is None else json.dumps(name[:100])} stands twice in one object", name)


def _names(document: object) -> int:
    count = 0
    level = [document]
    while level:
        count += sum([len(each) for each in level if type(each) is dict])
        level = _inner(level)
    return count


def _is_deeper(document: object, most: int) -> bool:
    level = [document]
    for _ in range(most):
        level = _inner(level)
        if not level:
            return False
    return True


def _inner(level: list[Any]) -> list[Any]:
    """The lists and objects in these lists and objects."""
    found = []
    for each in level:
        if type(each) is dict:
            found += [inner for inner in each.values() if type(inner) is dict or type(inner) is list]
        elif type(each) is list:
            found += [inner for inner in each if type(inner) is dict or type(inner) is list]
    return found


def _first_double(raw: bytes) -> str | None:
    found: list[str] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                found.append(name)
            names.add(name)

    json.loads(raw, object_pairs_hook=note)
    return found[0] if found else None


def _field_at_fault(raw: bytes) -> str | None:
    """The field with a number out of range; None in JSON that is wrong further on, too."""
    try:
        fields = _decode_fields(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for name, value in fields.items():
        try:
            _decode(value)
        except msgspec.ValidationError:
            return name
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None


def _too_many() -> InvalidJson:
    rule = f"{MOST_WORK}, where a list, an object or a name counts as {_HEAVY}, or {MOST_NUMBERS} numbers in one list"
    return InvalidJson(f"the body holds too many values: more than {rule}")


def _too_deep() -> InvalidJson:
    return InvalidJson(f"the body is nested too deeply: more than {MOST_DEPTH} levels")


def _not_utf8(raw: bytes) -> str:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8 text (byte {error.start})"
    return "the body is not UTF-8 text"


def _reason(raw: bytes, said: str) -> str:
    position = _POSITION.search(said)
    if position is not None:
        at = int(position[1])
        constant = _CONSTANT.match(raw, max(0, at - 1)) or _CONSTANT.match(raw, at)
        if constant is not None:
            return f"{constant[0].decode()} is no JSON number (byte {constant.start()})"
    if said == "Input data was truncated" and raw.rstrip().endswith(b"}"):
        return "half of a surrogate pair, or an end that is missing"
    return said.removeprefix("JSON is malformed: ")
