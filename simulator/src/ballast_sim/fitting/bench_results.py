"""Engine steps, reconstructed from token times: a result file of `vllm bench serve --save-result --save-detailed`.

The gap between two tokens of one request is one engine step: while a request decodes, every step gives it a token. What
else the step computed follows from the other requests' times: which were decoding (and with how much context), and
which had their first token together with the gap's second token: their prompts were computed in this step. That holds
where one engine served alone, without prefix cache hits and speculative decoding, one chunk a token.

A client reads late, and several chunks at once. So a sample is a run of neighbouring gaps: what is read too late in one
gap is missing in the next, and only the two ends of the run are uncertain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ballast_sim.fitting.errors import FitInputError
from ballast_sim.fitting.measurements import LARGEST_NUMBER, SHORTEST_MS, Measurements, read_text
from ballast_sim.fitting.samples import FloatArray, Sample

FIELDS = ("start_times", "ttfts", "itls", "input_lens", "output_lens")
STEPS_OF_A_SAMPLE = 16
MOST_SAMPLES = 8_000
HOW_TO = "run `vllm bench serve --save-result --save-detailed`"


@dataclass(frozen=True, slots=True)
class _Request:
    """A request that completed: its start, its token times, and its prompt."""

    start_s: float
    token_times_s: FloatArray
    input_tokens: int


def read_bench_result(path: Path, max_num_batched_tokens: int) -> Measurements:
    """Read one file. Prompts that had to be cut into chunks of `max_num_batched_tokens` give no sample.

    Raises `FitInputError` naming the field.
    """
    value, earlier = _object(path)
    requests = _requests(path, value)
    timeline = _Timeline(requests)
    samples: list[tuple[float, Sample]] = []
    chunked = 0
    for request in requests:
        for at_s, sample in timeline.samples_of(request, max_num_batched_tokens):
            if sample is None:
                chunked += 1
            else:
                samples.append((at_s, sample))
    if not samples:
        raise FitInputError(
            f"{path}: no request has two tokens whose steps can be reconstructed; "
            "ask for longer outputs, or a lower rate"
        )
    notes = ["taken for granted: one engine, no prefix cache hits, no speculative decoding, one chunk a token"]
    if earlier:
        notes.append(
            f"{earlier} earlier results of {path.name} passed over: only the last one counts; give each a file"
        )
    if chunked:
        notes.append(f"{chunked} samples passed over: more than {max_num_batched_tokens} prompt tokens were waiting")
    samples.sort(key=lambda item: item[0])
    every = -(-len(samples) // MOST_SAMPLES)
    return Measurements(samples=[sample for _, sample in samples[::every]], notes=notes)


class _Timeline:
    """Which requests waited and decoded when; all times in seconds of the file's clock."""

    def __init__(self, requests: list[_Request]) -> None:
        firsts = np.array([request.token_times_s[0] for request in requests])
        inputs = np.array([request.input_tokens for request in requests], dtype=float)
        lasts = np.array([request.token_times_s[-1] for request in requests])
        totals = inputs + np.array([len(request.token_times_s) for request in requests])
        laters = np.concatenate([request.token_times_s[1:] for request in requests])
        starts = np.array([request.start_s for request in requests])
        self._inputs = _Steps(firsts, inputs)
        self._pairs = _Steps(firsts, inputs**2 / 2)
        self._waiting = _Steps(np.concatenate([starts, firsts]), np.concatenate([inputs, -inputs]))
        ones, ended = np.ones(len(requests)), np.ones(len(requests))
        self._decoding = _Steps(np.concatenate([firsts, lasts]), np.concatenate([ones, -ended]))
        self._context = _Steps(
            np.concatenate([firsts, laters, lasts]), np.concatenate([inputs, np.ones(len(laters)), -(totals - 1)])
        )

    def samples_of(self, request: _Request, max_num_batched_tokens: int) -> Iterator[tuple[float, Sample | None]]:
        """When each run of the request's steps began, and the run; None where a prompt may have been cut into chunks.

        A token counts to the nearest of the request's own tokens: streams of one step arrive together, but not at once.
        """
        times = request.token_times_s
        gaps = np.diff(times)
        if not len(gaps):
            return
        half = gaps / 2
        before = times[:-1] + half  # after all tokens of the step before, ahead of all tokens of this one
        after = times[1:] + np.append(half[1:], half[-1])
        decodes, context = self._decoding.at(before), self._context.at(before)
        tokens = decodes + self._inputs.at(after) - self._inputs.at(before)
        pairs = self._pairs.at(after) - self._pairs.at(before)
        begun = np.concatenate([times[:1] - half[:1], times[:-1]])  # of the step before the first, and of all
        fits = self._waiting.at(begun) + np.concatenate([decodes[:1], decodes]) <= max_num_batched_tokens
        whole = fits[1:] & fits[:-1] & (tokens <= max_num_batched_tokens)  # a cut prompt ends in the step after
        for start in range(0, len(gaps), STEPS_OF_A_SAMPLE):
            run = slice(start, start + STEPS_OF_A_SAMPLE)
            duration_ms = float(gaps[run].sum()) * 1e3
            if duration_ms < SHORTEST_MS:
                continue
            sample = Sample(
                duration_ms=duration_ms,
                parts=tuple((1.0, float(number)) for number in tokens[run]),
                decode_context_tokens=float(context[run].sum()),
                prefill_pairs=float(pairs[run].sum()),
                decodes=float(decodes[run].sum()),
            )
            yield float(times[start]), sample if whole[run].all() else None


class _Steps:
    """A sum that changes at given times."""

    def __init__(self, times_s: FloatArray, changes: FloatArray) -> None:
        order = np.argsort(times_s, kind="stable")
        self._times_s = times_s[order]
        self._sums = np.concatenate([[0.0], np.cumsum(changes[order])])

    def at(self, times_s: FloatArray) -> FloatArray:
        """The sum of all changes up to each time."""
        sums: FloatArray = self._sums[np.searchsorted(self._times_s, times_s, side="right")]
        return sums


def _object(path: Path) -> tuple[dict[str, Any], int]:
    """The file's JSON object; `--append-result` files hold several, one a line: the last counts. And how many are
    before it."""
    text = read_text(path)
    earlier = 0
    try:
        value = json.loads(text)
    except ValueError:
        try:
            *before, last = text.strip().splitlines()
            value, earlier = json.loads(last), sum(bool(line.strip()) for line in before)
        except ValueError as error:
            raise FitInputError(f"{path}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FitInputError(f"{path}: must be an object as `vllm bench serve` writes it")
    if "throughput_tok_s" in value and "ttft_s" in value:
        raise FitInputError(f"{path}: a report of `ballast load` has no times of single tokens; {HOW_TO}")
    missing = [name for name in FIELDS if name not in value]
    if missing:
        raise FitInputError(f"{path}: no {', '.join(missing)}; {HOW_TO}")
    lengths = {name: len(value[name]) if isinstance(value[name], list) else -1 for name in FIELDS}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        raise FitInputError(f"{path}: {', '.join(FIELDS)} must be lists of one length, one entry a request")
    return value, earlier


def _requests(path: Path, value: dict[str, Any]) -> list[_Request]:
    """The requests that completed with at least one token."""
    found: list[_Request] = []
    for index, (start_s, ttft_s, gaps_s, input_tokens, output_tokens) in enumerate(
        zip(*(value[name] for name in FIELDS), strict=True)
    ):
        try:
            gaps = np.asarray(gaps_s, dtype=float)
            times = float(start_s) + float(ttft_s) + np.concatenate([[0.0], np.cumsum(gaps)])
            tokens, outputs = int(input_tokens), int(output_tokens)
        except (TypeError, ValueError):
            raise FitInputError(f"{path}: request {index}: {', '.join(FIELDS)} must hold numbers of seconds") from None
        except OverflowError:
            raise FitInputError(f"{path}: request {index}: lengths must be whole numbers of tokens") from None
        in_range = (np.abs(times) <= LARGEST_NUMBER).all() and 0 <= tokens <= LARGEST_NUMBER
        if not in_range or (gaps < 0).any():
            raise FitInputError(f"{path}: request {index}: times must be finite and in order, lengths 0 or more")
        if outputs:
            found.append(_Request(float(start_s), times, tokens))
    if not found:
        raise FitInputError(f"{path}: no request completed")
    together = sum(len(request.token_times_s) for request in found)
    stated = sum(int(number) for number in value["output_lens"])
    if together < 0.8 * stated:
        raise FitInputError(
            f"{path}: itls has {together} token times for {stated} tokens: several tokens came in one chunk; "
            "serve with --stream-interval 1 and without speculative decoding"
        )
    return found
