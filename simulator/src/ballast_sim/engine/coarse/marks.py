"""Progress of a cohort's members, reported at every multiple of so many output tokens."""

from collections.abc import Sequence

from ballast_sim.engine.requests import RequestState

Mark = tuple[float, str, int]
"""(time in seconds, `mark_as` of the request, output tokens and `mark_from`)."""


class ProgressMarks:
    """Members by the step, modulo `every`, that brings them to a multiple of `every` tokens."""

    __slots__ = ("_every", "_members", "reported", "steps_without")

    def __init__(self, every: int) -> None:
        """`every`: output tokens between two marks; 0 is no marks."""
        self._every = every
        # For each member: its name, the steps processed before its first one, and its tokens less the steps processed.
        self._members: list[dict[RequestState, tuple[str, int, int]]] = [{} for _ in range(max(1, every))]
        self.reported = 0
        """The last step whose marks were reported."""
        self.steps_without = 0
        """How many steps after those bring no member to a multiple, as long as none joins."""

    def add(self, request: RequestState, processed: int) -> None:
        """A member joins after so many processed steps; its `output_tokens` are up to date."""
        if self._every:
            spec, ahead = request.spec, request.output_tokens - processed
            name = request.request_id if spec.mark_as is None else spec.mark_as
            if name:
                self._members[-ahead % self._every][request] = name, processed, ahead + spec.mark_from

    def remove(self, request: RequestState, processed: int) -> None:
        """A member leaves; `processed` and its `output_tokens` are those with which it joined."""
        if self._every:
            self._members[(processed - request.output_tokens) % self._every].pop(request, None)

    def advance(self, ended_s: Sequence[float], future_s: Sequence[float], steps: int) -> Sequence[Mark]:
        """Marks that were not reported yet, in order: of the steps that ended at `ended_s`, and of `steps` more.

        The latter will end at `future_s`. A request that has left the cohort reports its own progress.
        """
        processed, number = len(ended_s), self.reported
        last = self.reported = processed + steps
        found: list[Mark] = []
        slots, every = self._members, self._every
        if not every:
            return found
        while number < last:
            number += 1
            members = slots[number % every]
            if members:
                at_s = ended_s[number - 1] if number <= processed else future_s[number - processed - 1]
                for name, before, ahead in members.values():
                    if number > before:
                        found.append((at_s, name, number + ahead))
        without, last = 0, last + 1
        while without < every and not slots[(last + without) % every]:
            without += 1
        self.steps_without = without
        return found
