"""Tokens and text without a model: a reversible tokenizer and deterministic output.

A token is up to four bytes that are no space, with the space before them if there is one: about 3.5 characters of
English, as real tokenizers have it. Its id encodes its bytes (shorter ones first), so decoding gives back any text,
and token ids mean the same on every server. Ids beyond five bytes do not exist.

Output tokens are made-up words of four letters. The next word follows from all tokens before it (and the server's
seed), as greedy decoding does: a prompt together with the first k output tokens continues with token k+1, on any
server.
"""

import re
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from ballast_sim.engine import TokenContent

_PIECE = re.compile(rb" ?[^ ]{1,4}| ")
_LONGEST = 5
_OFFSETS: list[int] = [0, 0, *(sum(256**n for n in range(1, length)) for length in range(2, _LONGEST + 2))]
VOCABULARY_SIZE = _OFFSETS[_LONGEST + 1]

_CONSONANTS, _VOWELS = b"bcdfghjklmnprstvwxyz", b"aeiou"
_SYLLABLES = [bytes((consonant, vowel)) for consonant in _CONSONANTS for vowel in _VOWELS]
WORDS = [b" " + first + second for first in _SYLLABLES for second in _SYLLABLES]
"""Every output token's text; all are five bytes long."""

_MASK = (1 << 64) - 1
_FACTOR = 0x5851F42D4C957F2D
_MIX = 0x9E3779B97F4A7C15


def token_id(piece: bytes) -> int:
    """The id of one token's bytes (1 to 5 of them)."""
    return _OFFSETS[len(piece)] + int.from_bytes(piece, "big")


WORD_IDS = [token_id(word) for word in WORDS]


def tokenize(text: str) -> list[int]:
    """Token ids of a text; lone surrogates become question marks."""
    return [token_id(piece) for piece in _PIECE.findall(text.encode("utf-8", "replace"))]


def token_bytes(token: int) -> bytes:
    """The bytes behind a token id. Raises ValueError for an id outside the vocabulary."""
    if not 0 <= token < VOCABULARY_SIZE:
        raise ValueError(f"token id {token} is out of vocabulary")
    length = next(length for length in range(1, _LONGEST + 1) if token < _OFFSETS[length + 1])
    return (token - _OFFSETS[length]).to_bytes(length, "big")


def detokenize(tokens: Sequence[int]) -> str:
    """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")


class _Powers:
    """Powers of the rolling hash's factor, grown as prompts need them."""

    def __init__(self) -> None:
        self._powers = np.ones(1, dtype=np.uint64)

    def first(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        """factor^(count-1) down to factor^0."""
        if len(self._powers) < count:
            size = max(count, 2 * len(self._powers))
            factors = np.full(size, _FACTOR, dtype=np.uint64)
            factors[0] = 1
            self._powers = np.cumprod(factors, dtype=np.uint64)
        return self._powers[count - 1 :: -1] if count else self._powers[:0]


_POWERS = _Powers()


def rolling_hash(tokens: Sequence[int]) -> int:
    """h = (((t1 f + t2) f + t3) ...) modulo 2^64."""
    values = np.array(tokens, dtype=np.uint64)
    return int((values * _POWERS.first(len(values))).sum(dtype=np.uint64))


class GeneratedContent(TokenContent):
    """A prompt and the output that follows from it, generated only as far as it is read."""

    __slots__ = ("_state", "input_tokens", "seed", "words")

    def __init__(self, tokens: list[int], block_size: int, seed: int, adapter: str = "") -> None:
        """The list of tokens is taken over and grows. Another adapter gives another output."""
        super().__init__(tokens, block_size, adapter)
        self.input_tokens = len(tokens)
        self.seed = seed * _MIX & _MASK
        self._state = rolling_hash(tokens) ^ crc32(adapter.encode())
        self.words: list[int] = []

    def word(self, index: int) -> int:
        """Which word the output token `index` (from 0) is: an index into WORDS and WORD_IDS."""
        words = self.words
        while len(words) <= index:
            mixed = (self._state ^ self.seed) * _MIX & _MASK
            word = (mixed >> 32) % len(WORDS)
            token = WORD_IDS[word]
            words.append(word)
            self.tokens.append(token)
            self._state = (self._state * _FACTOR + token) & _MASK
        return words[index]

    def upto(self, blocks: int) -> Sequence[int]:
        """See `BlockHashes`."""
        missing = blocks * self._block_size - len(self.tokens)
        if missing > 0:
            self.word(len(self.words) + missing - 1)
        return super().upto(blocks)


def render_chat(messages: Sequence[tuple[str, str]], add_generation_prompt: bool) -> str:
    """ChatML, the template of the Qwen family."""
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return text + "<|im_start|>assistant\n" if add_generation_prompt else text
