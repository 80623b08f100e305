"""The controller: keys to looks, whatever a look does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.controller import Controller, Key
from ballast_operator.handlers import kopf_settings, registry_for
from ballast_operator.kinds import HARDWARE_PROFILE, SERVING_POOL, Kind
from ballast_operator.reconcile import Result
from ballast_operator.settings import OperatorSettings
from tests.support.operator_builders import DEFAULTS

CHAT = Key(SERVING_POOL, "team", "chat")
SETTINGS = OperatorSettings(gateway=DEFAULTS, workers=2, resync_s=0.05)


class Looks:
    """Remembers looks; `act` is called in each, in a thread."""

    def __init__(self, act: Callable[[str, int], Result] = lambda *_: Result()) -> None:
        self.names: list[str] = []
        self._act = act
        self._changed = threading.Condition()

    def serving_pool(self, namespace: str, name: str) -> Result:
        self._note(f"{namespace}/{name}")
        return self._act(name, self.names.count(f"{namespace}/{name}"))

    def referred(self, kind: Kind, namespace: str | None, name: str) -> Result:
        self._note(f"{kind.kind} {namespace} {name}")
        return Result()

    async def reach(self, name: str, times: int) -> None:
        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(lambda: self.names.count(name) >= times, timeout=10)

        assert await asyncio.to_thread(wait), f"{name} was looked at {self.names.count(name)} times"

    def _note(self, name: str) -> None:
        with self._changed:
            self.names.append(name)
            self._changed.notify_all()


async def test_a_seen_object_is_looked_at_and_again_at_every_resync_until_it_is_deleted() -> None:
    """The safety net for what no watch reports."""
    looks = Looks()
    controller = Controller(looks, SETTINGS)
    controller.start()
    controller.seen(CHAT, deleted=False)
    controller.seen(Key(HARDWARE_PROFILE, None, "h20"), deleted=False)
    await looks.reach("team/chat", 3)
    await looks.reach("HardwareProfile None h20", 3)
    controller.seen(CHAT, deleted=True)
    await asyncio.sleep(0.2)
    count = looks.names.count("team/chat")
    await asyncio.sleep(0.2)
    assert count == looks.names.count("team/chat")
    await controller.stop()


async def test_neither_a_refusal_nor_an_unforeseen_error_ends_a_worker() -> None:
    """The same key comes back, other keys go on."""

    def act(name: str, times: int) -> Result:
        if name == "broken":
            raise ApiFailure(0, "Unreachable", "no answer") if times == 1 else RuntimeError("unforeseen")
        return Result()

    looks = Looks(act)
    controller = Controller(looks, OperatorSettings(gateway=DEFAULTS, workers=1, resync_s=60.0))
    controller.start()
    controller.touch(Key(SERVING_POOL, "team", "broken"))
    controller.touch(CHAT)
    await looks.reach("team/broken", 2)
    await looks.reach("team/chat", 1)
    assert controller.alive()
    await controller.stop()
    assert not controller.alive()


async def test_no_two_workers_look_at_one_object_at_once() -> None:
    """Two looks at a time would race for its status."""
    lock, overlaps = threading.Lock(), []

    def act(name: str, times: int) -> Result:
        if not lock.acquire(blocking=False):
            overlaps.append(times)
            return Result()
        threading.Event().wait(0.01)
        lock.release()
        return Result(requeue_s=0.0)

    looks = Looks(act)
    controller = Controller(looks, OperatorSettings(gateway=DEFAULTS, workers=4, resync_s=60.0))
    controller.start()
    for _ in range(20):
        controller.touch(CHAT)
        await asyncio.sleep(0.005)
    await looks.reach("team/chat", 10)
    await controller.stop()
    assert overlaps == []


def test_kopf_reads_and_writes_nothing_in_the_cluster() -> None:
    """No handler of any resource: only activities."""
    registry = registry_for(lambda: Controller(Looks(), SETTINGS))
    for each in (registry._changing, registry._spawning, registry._indexing, registry._watching, registry._webhooks):
        assert not each.get_all_handlers()
    assert kopf_settings(SETTINGS).scanning.disabled


class Thread:
    """Beside the controller; may be made to look dead."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.dead = False

    def start(self) -> None:
        self.said.append("start")

    def stop(self) -> None:
        self.said.append("stop")

    def alive(self) -> bool:
        return not self.dead


async def test_what_runs_beside_it_lives_as_long_as_it_does_and_counts_for_its_health() -> None:
    """The probe of the process then restarts it."""
    controller, beside = Controller(Looks(), SETTINGS), Thread()
    controller.beside(beside)
    controller.start()
    assert (beside.said, controller.alive()) == (["start"], True)
    beside.dead = True
    assert not controller.alive()
    await controller.stop()
    assert beside.said == ["start", "stop"]


class Watches(Thread):
    """What looks read from; settled when the test says so."""

    settled = False


async def test_no_look_comes_before_what_it_reads() -> None:
    """Watches begin before this operator leads, and end with it; their health is its own."""
    looks, watches = Looks(), Watches()
    controller = Controller(looks, SETTINGS, watches=watches)
    controller.watch()
    controller.seen(CHAT, deleted=False)
    controller.start()
    await asyncio.sleep(0.1)
    assert (looks.names, watches.said) == ([], ["start"])
    watches.settled = True
    await looks.reach("team/chat", 1)
    watches.dead = True
    assert not controller.alive()
    await controller.stop()
    assert watches.said == ["start", "stop"]
