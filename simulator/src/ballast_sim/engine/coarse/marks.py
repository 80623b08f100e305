"""Progress of a cohort's members, reported at every multiple of so many output tokens."""

from collections.abc import Sequence

from ballast_sim.engine.requests import RequestState

Mark = tuple[float, str, int]
"""(time in seconds, `mark_as` of the request, output tokens and `mark_from`)."""


class ProgressMarks:
    """Members by the step, modulo `every`, that brings them to a multiple of `every` tokens."""

    __slots__ = ("_every", "_members", "reported")

    def __init__(self, every: int) -> None:
        """`every`: output tokens between two marks; 0 is no marks."""
        self._every = every
        # For each member: its name, the steps processed before its first one, and its tokens less the steps processed.
        self._members: list[dict[RequestState, tuple[str, int, int]]] = [{} for _ in range(max(1, every))]
        self.reported = 0
        """The last step whose marks were reported."""

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
        append, slots, every = found.append, self._members, self._every
        while number < last:
            number += 1
            members = slots[number % every]
            if members:
                at_s = ended_s[number - 1] if number <= processed else future_s[number - processed - 1]
                for request_id, before, ahead in members.values():
                    if number > before:
                        append((at_s, request_id, number + ahead))
        return found

    def steps_without_marks(self) -> int:
        """How many steps after those reported bring no member to a multiple, as long as none joins."""
        slots, every, first = self._members, self._every, self.reported + 1
        steps = 0
        while steps < every and not slots[(first + steps) % every]:
            steps += 1
        return steps
