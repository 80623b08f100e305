"""A limit on prompt tokens in a step, below vLLM's token budget: the protocol. vLLM itself has none."""

from typing import Protocol

from ballast_sim.engine.vllm.batch import Batch


class PromptBudget(Protocol):
    """How many prompt tokens a step may compute."""

    def tokens(self, first: int) -> int:
        """Prompt tokens that the step being composed may have beside all its decodes.

        Its decodes are those of the running list from index `first`, and those that a coarse engine has scheduled.
        """
        ...

    def observe(self, batch: Batch) -> None:
        """Called with each step that has ended."""
        ...
