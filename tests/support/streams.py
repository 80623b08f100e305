"""The content of a whole stream of the OpenAI API."""

from __future__ import annotations

import json
from typing import Any

import httpx


async def heard(client: httpx.AsyncClient, url: str, body: dict[str, Any], request_id: str) -> dict[str, Any]:
    """The content of a stream, however it is cut into events: vLLM joins tokens when it falls behind."""
    said: dict[str, Any] = {"text": "", "roles": [], "ends": [], "usage": None, "ids": set(), "done": 0, "leaked": 0}
    async with client.stream("POST", url, json=body, headers={"x-request-id": request_id}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            said["done"] += line == "data: [DONE]"
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            said["ids"].add(event["id"])
            said["usage"] = event.get("usage") or said["usage"]
            said["leaked"] += bool(event.get("prompt_token_ids"))
            for choice in event["choices"]:
                delta = choice.get("delta") or {}
                said["text"] += choice.get("text") or delta.get("content") or ""
                said["roles"] += [delta["role"]] if delta.get("role") else []
                said["ends"] += [choice["finish_reason"]] if choice["finish_reason"] else []
                said["leaked"] += bool(choice.get("token_ids") or choice.get("prompt_token_ids"))
    return said
