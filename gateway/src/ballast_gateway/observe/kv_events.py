"""Listens to the KV events of every member of the fleet (vLLM's ZMQ publisher, `vllm/distributed/kv_events.py`).

A rank publishes batches with numbers from 0 on, and repeats its last ones on a second port. Each subscription begins
with all of them. If they begin with number 0, the reports are complete; else they tell the truth, but not all of it.
After a gap or a lost connection it asks from the last batch on that it had: if that one comes again as it was, what
follows fills the gap; else the engine has started anew, or has forgotten, and the reports begin anew.

A stream may hold anything. Messages, names and blocks are bounded; what cannot be read ends completeness, as a gap
does; a rank's batches take at most a fifth of the loop's time. Nothing is raised.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from ballast_api.gateway_settings import KvEvents
from ballast_core.beliefs.reported_prefixes import READING
from ballast_core.model import EndpointId
from ballast_core.model.events import CacheReported, CacheReportsBegun, CacheReportsEnded, Event
from ballast_core.model.kv_reports import HistoryTold
from ballast_gateway.http.client import KEEP_ALIVE, split_address
from ballast_gateway.observe.fleet import Member
from ballast_gateway.observe.kv_batches import BadBatch, BatchReader
from ballast_gateway.observe.kv_counts import KvCounts
from ballast_gateway.observe.kv_inbox import Inbox, Room

_log = logging.getLogger(__name__)

_MOST_BYTES = 4 * 1024 * 1024
"""Of one batch: a prompt of a million tokens fits."""
_WAITING = 1000
"""Batches that wait in a live socket while the loop does something else."""
_WAITING_BYTES = 8 * 1024 * 1024
"""That wait here, of each rank; more are lost, which is a gap."""
_REPLAYED = 128
"""Batches that wait in the socket of a replay, of which the engine drops what cannot wait."""
_REPLAYED_BYTES = 128 * 1024 * 1024
"""Of all replays together, that wait here; more are lost, which is a gap."""
_REPLAY_S = 5.0
"""Seconds without an answer until a replay counts as failed. vLLM looks at that port ten times a second."""
_OLD = 30_000
"""Batches with numbers that have been, in a row, after which the engine is taken for restarted: more than can have
waited while they were repeated."""
_SAY_EVERY_S = 10.0
_SHARE = 5
"""A stream whose batches took t seconds is left alone until _SHARE t have passed."""
_BREATHE_S = 2e-3
_AGAIN_S = 1.0
_MOST_REPLAYED = 1_000_000
"""Batches of one replay: vLLM keeps 10,000 by default."""


class KvEventStreams:
    """One subscription for each rank of each member. Call `sync` when members have come or gone."""

    def __init__(self, settings: KvEvents, feed: Callable[[Event], None]) -> None:
        self.counts = KvCounts()
        self._settings = settings
        self._feed = feed
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))  # by default enough for 341 ranks
        self._room = Room(_REPLAYED_BYTES)
        self._streams: dict[EndpointId, tuple[Member, list[_Stream]]] = {}

    def sync(self, members: dict[EndpointId, Member]) -> None:
        """Listen to exactly these members."""
        for endpoint_id, (member, streams) in list(self._streams.items()):
            if members.get(endpoint_id) is not member:
                for stream in streams:
                    stream.task.cancel()
                del self._streams[endpoint_id]
                self._feed(CacheReportsEnded(endpoint_id))
        for endpoint_id, member in members.items():
            if endpoint_id not in self._streams:
                ranks = range(self._settings.ranks)
                streams = [self._stream(member, rank) for rank in ranks]
                self._streams[endpoint_id] = member, streams

    def _stream(self, member: Member, rank: int) -> _Stream:
        return _Stream(
            self._context,
            member,
            rank,
            settings=self._settings,
            feed=self._feed,
            counts=self.counts,
            room=self._room,
        )

    def connected(self, endpoint_id: EndpointId) -> bool:
        """Whether every rank of the endpoint is connected."""
        _, streams = self._streams.get(endpoint_id, (None, []))
        return bool(streams) and all(stream.connected for stream in streams)

    async def close(self) -> None:
        """Listen no more."""
        tasks = [stream.task for _, streams in self._streams.values() for stream in streams]
        self._streams.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)


class _Stream:
    """The reports of one rank."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        member: Member,
        rank: int,
        *,
        settings: KvEvents,
        feed: Callable[[Event], None],
        counts: KvCounts,
        room: Room,
    ) -> None:
        host, _ = split_address(member.endpoint.address)
        self._host = f"[{host}]" if ":" in host else host
        self._endpoint_id = member.endpoint.id
        self._rank = rank
        self._settings = settings
        self._context = context
        self._feed = feed
        self._counts = counts
        self._room = room
        self._reader = BatchReader()
        self._next: int | None = None
        """The number of the next batch; None: any, as it is not known what has been."""
        self._last = b""
        """Digest of the batch before."""
        self._old = 0
        self._said_s = -_SAY_EVERY_S
        self._due = asyncio.Event()
        """There is a connection, and what it may have missed is to be asked for."""
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is lost."""
        self.connected = False
        self._begin("it is not connected yet")
        self.task = asyncio.create_task(self._run())

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except (zmq.ZMQError, ValueError) as error:
                self._say(f"its events cannot be listened to: {error}")
            except Exception:
                _log.exception("listening to KV events failed", extra={"endpoint": self._endpoint_id})
            self.connected = False
            await asyncio.sleep(_AGAIN_S)

    def _socket(self, kind: int, waiting: int) -> zmq.asyncio.Socket:
        """A socket in which so many messages wait at most, not connected yet."""
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVHWM, waiting)
        made.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        made.setsockopt(zmq.RECONNECT_IVL, 100)
        made.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        made.setsockopt(zmq.TCP_KEEPALIVE, 1)  # ZMTP's heartbeats end the process where a full connection breaks
        for name, value in KEEP_ALIVE.items():
            made.setsockopt(getattr(zmq, f"TCP_KEEPALIVE_{name}"), value)
        made.setsockopt(zmq.IPV6, int(":" in self._host))
        return made

    def _address(self, port: int) -> str:
        return f"tcp://{self._host}:{port + self._rank}"

    async def _listen(self) -> None:
        events = self._socket(zmq.SUB, _WAITING)
        watching: list[asyncio.Future[Any]] = []
        try:
            events.setsockopt_string(zmq.SUBSCRIBE, self._settings.topic)
            monitor = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            events.connect(self._address(self._settings.port))
            async with Inbox(events, Room(_WAITING_BYTES), drops=True) as inbox:
                heard = asyncio.ensure_future(inbox.next())
                due = asyncio.ensure_future(self._due.wait())
                watching = [asyncio.ensure_future(self._watch(monitor)), heard, due]
                while True:
                    await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
                    if due.done():
                        self._due.clear()
                        watching[2] = due = asyncio.ensure_future(self._due.wait())
                        heard.cancel()
                        inbox.clear()  # of the connection before, and perhaps of the engine before
                        watching[1] = heard = asyncio.ensure_future(inbox.next())
                        await self._catch_up()
                    elif heard.done():
                        frames = heard.result()
                        watching[1] = heard = asyncio.ensure_future(inbox.next())
                        await self._heard(frames)
                        if inbox.lost_some():
                            await self._catch_up()
                    else:
                        watching[0].result()
        finally:
            for each in watching:
                each.cancel()
            events.disable_monitor()
            events.close()

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        """Notice when the connection is there, and when it is lost."""
        while True:
            said = parse_monitor_message(await monitor.recv_multipart())
            self.connected = said["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self.connected:
                self._lost = asyncio.get_running_loop().create_future()
                self._due.set()
            elif not self._lost.done():
                self._lost.set_result(None)

    # --- order -------------------------------------------------------------------------------------------------------

    async def _heard(self, frames: list[bytes]) -> None:
        """One live message."""
        if len(frames) != 3 or len(frames[1]) != 8:
            self._counts.unreadable += 1
            self._say("it published what is no batch")
            return
        number, payload = int.from_bytes(frames[1], "big"), frames[2]
        if self._next is not None and number > self._next:
            await self._catch_up()
        if self._next is None and number == 0:
            self._begin("")
        if self._next is not None and number > self._next:
            self._missed(f"batches {self._next} to {number - 1} are lost")
        if self._next is not None and number < self._next:
            self._old += 1
            if self._old > _OLD:
                self._missed("its numbers began anew")
                await self._catch_up()
            return
        self._old = 0
        await self._take(number, payload)

    async def _catch_up(self) -> None:
        """Have repeated what may have been missed."""
        if self._next and await self._replay(self._next - 1):
            return
        await self._replay(0)

    async def _replay(self, first: int) -> bool:
        """Ask for the batches from `first` on: 0, to begin anew, or the last one that was taken, to go on from there.

        False if nothing could be gone on from.
        """
        repeats = self._socket(zmq.DEALER, _REPLAYED)
        try:
            repeats.connect(self._address(self._settings.replay_port))
            await repeats.send_multipart([b"", first.to_bytes(8, "big")])
            async with Inbox(repeats, self._room) as inbox:
                told = await self._repeated(inbox, first)
        finally:
            repeats.close()
        if told is None and first == 0:
            self._missed("its connection broke" if self._lost.done() else "it does not repeat its events")
        return told or False

    async def _repeated(self, inbox: Inbox, first: int) -> bool | None:
        """As `_replay`; None where it ends before its end."""
        anew, missed, begun = first == 0, self._next, False
        for _ in range(_MOST_REPLAYED):
            if not await inbox.comes(unless=self._lost, timeout_s=_REPLAY_S):
                break
            frames = inbox.pop()
            if frames is None or len(frames) != 4 or len(frames[2]) != 8:
                break
            number, payload = int.from_bytes(frames[2], "big", signed=True), frames[3]
            if number < 0:
                return self._replayed(anew=anew, begun=begun, missed=missed)
            if not begun:
                begun = True
                if not anew:
                    if number != first or _digest(payload) != self._last:
                        return False
                    continue
                if number:
                    self._missed(f"what it repeats begins with batch {number}")
                else:
                    self._begin(READING)
            elif number != self._next:
                self._missed("what it repeats has gaps")
            await self._take(number, payload)
        return None

    def _replayed(self, *, anew: bool, begun: bool, missed: int | None) -> bool:
        """All that it had to repeat has come."""
        if not anew:
            self._counts.gaps_filled += begun and self._next != missed
            return begun
        if not begun:
            self._begin("")
            self._next = 0
        else:
            self._feed(CacheReported(self._endpoint_id, self._rank, (HistoryTold(),)))
        return True

    async def _take(self, number: int, payload: bytes) -> None:
        """The next batch."""
        began_s = time.perf_counter()
        self._next, self._last = number + 1, _digest(payload)
        self._counts.batches += 1
        try:
            reports = self._reader.read(payload)
        except BadBatch as error:
            self._counts.unreadable += 1
            self._missed(f"a batch cannot be read: {error}", after=number)
        else:
            self._feed(CacheReported(self._endpoint_id, self._rank, reports))
        took_s = time.perf_counter() - began_s
        await asyncio.sleep((_SHARE - 1) * took_s if took_s > _BREATHE_S else 0)

    # --- what is known -----------------------------------------------------------------------------------------------

    def _missed(self, problem: str, *, after: int | None = None) -> None:
        """Reports were missed for good: begin anew, after this batch or with whatever comes."""
        self._counts.gaps_unfilled += 1
        self._say(problem)
        self._begin(problem)
        self._next = None if after is None else after + 1

    def _begin(self, problem: str) -> None:
        self._reader = BatchReader()
        self._old = 0
        self._feed(CacheReportsBegun(self._endpoint_id, self._rank, self._settings.max_blocks, problem))

    def _say(self, problem: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            extra = {"endpoint": self._endpoint_id, "rank": self._rank, "problem": problem}
            _log.warning("an endpoint's KV events are not complete", extra=extra)


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()
