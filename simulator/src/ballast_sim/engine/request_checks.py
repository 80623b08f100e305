"""Requests that could never run are refused when they are added."""

from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.requests import EngineRequest


def check_request(request: EngineRequest, config: EngineConfig) -> None:
    """Raises ValueError naming the field that this engine cannot serve."""
    if request.input_tokens < 1:
        raise ValueError(f"input_tokens: must be 1 or more, not {request.input_tokens!r}")
    if request.max_tokens < 1:
        raise ValueError(f"max_tokens: must be 1 or more, not {request.max_tokens!r}")
    if request.input_tokens >= config.max_model_len:
        raise ValueError(
            f"input_tokens: {request.input_tokens} leave no room for output within max_model_len {config.max_model_len}"
        )
    if request.pull_tokens is not None and not 1 <= request.pull_tokens <= request.input_tokens:
        raise ValueError(f"pull_tokens: must lie in 1..{request.input_tokens}, the prompt, not {request.pull_tokens!r}")
    if request.pull and not config.pulls_kv:
        raise ValueError("pull: this engine has no pull connector on the consuming side (kv_role kv_consumer)")
