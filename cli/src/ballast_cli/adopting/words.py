"""vLLM's command line in a container, taken apart: which program, which model, which options. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ballast_sim.human_integers import human_integer

_SHORT: Final = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size"}
_SHELLS: Final = re.compile(r"^(.*/)?(ba|da|z)?sh$")
_SHELL_WORDS: Final = re.compile(r"[;&|<>`]|\$\(|\$\{|\$[A-Za-z_]|\n(?!\s*$)")
_MODULE: Final = "vllm.entrypoints.openai.api_server"


@dataclass(frozen=True, slots=True)
class Option:
    """One option as it stands on the command line."""

    name: str
    """Without dashes, with `-` for `_`."""
    words: tuple[str, ...]
    """As they were written."""
    value: str | None
    """The first value; None for a switch."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A program that serves a model."""

    command: tuple[str, ...]
    """What stands before `serve`; `vllm` where the image's own entry point has it."""
    model: str
    options: tuple[Option, ...]

    def last(self, name: str) -> str | None:
        """The value of an option that vLLM takes: the last one's."""
        return next((each.value for each in reversed(self.options) if each.name == name), None)

    def number(self, name: str) -> int | None:
        """The whole number of 0 or more that an option has; None without one (`auto`, `$(LENGTH)`)."""
        try:
            value = human_integer(self.last(name) or "")
        except ValueError:
            return None
        return value if value >= 0 else None


def command_line(container: Mapping[str, Any]) -> CommandLine | str:
    """What a container runs; a sentence that says why it is not understood."""
    words = [str(each) for each in (*(container.get("command") or ()), *(container.get("args") or ()))]
    if words and _SHELLS.match(words[0]):
        words = _script(words[1:])
        if not words:
            return "its command is a shell script that is more than one vLLM command; write the command into `args`"
    command: tuple[str, ...] = ("vllm",)
    if _MODULE in words:
        rest = words[words.index(_MODULE) + 1 :]
    elif "serve" in words:
        at = words.index("serve")
        rest, command = words[at + 1 :], tuple(words[:at]) or command
    elif not container.get("command"):
        rest = list(words)
    else:
        return f"its command is no vLLM: {' '.join(words[:3])} ..."
    positional, options = _taken_apart(rest)
    found = CommandLine(command, "", options)
    model = positional or found.last("model")
    if not model:
        return "its command line names no model"
    return CommandLine(found.command, model, tuple(each for each in options if each.name != "model"))


def _script(words: Sequence[str]) -> list[str]:
    """The words of `sh -c "exec vllm serve ..."`; empty if the script does more than that."""
    text = words[-1] if words and words[0].startswith("-") and "c" in words[0] else ""
    text = text.replace("\\\n", " ").strip()
    if not text or _SHELL_WORDS.search(text):
        return []
    try:
        found = shlex.split(text)
    except ValueError:
        return []
    return found[1:] if found[:1] == ["exec"] else found


def _taken_apart(words: Sequence[str]) -> tuple[str, tuple[Option, ...]]:
    """The model, where it stands without an option, and the options."""
    positional = words[0] if words and not words[0].startswith("-") else ""
    options: list[list[str]] = []
    for word in words[1:] if positional else words:
        if _is_option(word):
            options.append([word])
        elif options:
            options[-1].append(word)
    return positional, tuple(_option(each) for each in options)


def _is_option(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None


def _option(words: Sequence[str]) -> Option:
    head, equals, value = words[0].partition("=")
    name = _SHORT.get(head, head.lstrip("-").replace("_", "-"))
    values = [value, *words[1:]] if equals else list(words[1:])
    return Option(name, tuple(words), values[0] if values else None)
