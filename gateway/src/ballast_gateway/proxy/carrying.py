"""What may be done with a request that another process will hold: the same rules as for a stream of this one."""

from __future__ import annotations

from ballast_gateway import lax, paths
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.bodies import Generation, choices, is_never_pulled
from ballast_gateway.proxy.fields import is_divisible, is_replayable


def carries(path: str, document: JsonObject) -> tuple[bool, bool]:
    """Whether its decode may move, and whether its prompt may be cut. `document`: without control fields."""
    route = path.partition("?")[0].rstrip("/")
    if route not in {paths.COMPLETIONS, paths.CHAT}:
        return False, False
    chat = route == paths.CHAT
    plain = lax.plain(document, chat=chat) or document
    try:
        count = choices(plain)
    except (TypeError, ValueError):
        return False, False
    generation = Generation(
        chat=chat,
        model="",
        stream=plain.get("stream") is True,
        prompt_tokens=0,
        max_output_tokens=None,
        choices=count,
        document=plain,
        raw=b"",
        pulls=not is_never_pulled(plain, chat=chat),
    )
    return is_replayable(generation), is_divisible(generation)
