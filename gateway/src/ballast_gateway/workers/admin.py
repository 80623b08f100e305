"""The admin port of a gateway with workers: metrics of all, ready if all are, the rest by one that is named.

The live page is that of one worker, whose events are passed on as they come. Workers hear each other as replicas do, so
the first one that serves shows all; one that is named shows what it has done itself.

`/metrics` has every series of every worker with the label `worker`; sums are the reader's to make. Attainment,
demand, loads and recorded traffic are those of all together. Other routes are those of one worker, 0 if it is not said;
`?worker=N` names it, for these, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pydantic import TypeAdapter

from ballast_api.attainment_report import ATTAINMENT, read_report, together
from ballast_api.demand_report import DEMAND, read_demand
from ballast_api.demand_report import together as demand_together
from ballast_api.load_report import HOLD, LOAD, held_together
from ballast_api.load_report import read_report as read_load
from ballast_api.load_report import together as loads_together
from ballast_api.profile_report import PROFILES, read_profiles
from ballast_api.profile_report import together as profiles_together
from ballast_api.recorded_traffic import TRAFFIC, rows_of
from ballast_api.recorded_traffic import merged as traces_merged
from ballast_gateway.live.rows import EVENTS, LIVE, ONLY, REQUEST, WORKERS
from ballast_gateway.live.serving import OPEN, serve_page, stream
from ballast_gateway.probes import Receive, Scope, Send, asking_pod
from ballast_gateway.who_may_ask import WhoMayAsk

if TYPE_CHECKING:
    import httpx

_JSON: Final = "application/json"
_TOGETHER: Final = frozenset({ATTAINMENT, DEMAND, LOAD, PROFILES, TRAFFIC})
_PARTIAL: Final = (503, _JSON, b'{"detail": "a worker that serves does not answer"}')
_WAIT_S: Final = 2.0
"""For a worker's metrics, or for its word that it lives or is ready."""
_ADMIN_WAIT_S: Final = 30.0
_MOST_TARGET_BYTES: Final = 16 * 1024
"""Of a path with its query. Escaped anew it may be three times as long, of which httpx takes 64 KiB."""
_INTEGER: Final = TypeAdapter(int)
"""As workers read one: `5.0` is 5."""


class Admin:
    """An ASGI application. `workers` has the admin port of each by its number, None while it does not serve."""

    def __init__(self, workers: Callable[[], Mapping[str, int | None]], who_may_ask: WhoMayAsk) -> None:
        self._workers = workers
        self._who_may_ask = who_may_ask
        self._client: httpx.AsyncClient | None = None

    async def aclose(self) -> None:
        """Close connections to workers; streams of theirs end with that."""
        if self._client is not None:
            await self._client.aclose()

    async def silent(self) -> list[str]:
        """The workers that serve and say nothing in time, asked whether they live. One that cannot be asked is none of
        them: this process may have no descriptor left."""
        import httpx

        answers = await self._answers("/healthz", {}, _WAIT_S)
        return [number for number, answer in answers.items() if isinstance(answer, httpx.TimeoutException)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        if scope["method"] != "GET":
            await _respond(send, 405, _JSON, _detail("Method Not Allowed"))
        elif len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > _MOST_TARGET_BYTES:
            await _respond(send, 414, _JSON, _detail("URI Too Long"))
        elif not path.startswith("/"):
            await _respond(send, 404, _JSON, _detail("Not Found"))
        elif path == "/healthz":
            await _respond(send, 200, _JSON, b'{"status": "ok"}')
        elif path == "/readyz":
            await _respond(send, *await self._readiness())
        elif path == "/metrics":
            await _respond(send, *await self._metrics())
        elif path == HOLD:
            await _respond(send, *await self._hold(asking_pod(scope)))
        elif path in OPEN:
            await serve_page(scope, receive, send)
        elif path == EVENTS:
            await self._events(scope, receive, send)
        else:
            await _respond(send, *await self._forwarded(scope, path))

    async def _readiness(self) -> tuple[int, str, bytes]:
        """Not ready while a worker that takes connections is not: some of them would be its own."""
        answers = await self._ask_all("/readyz")
        reasons = [
            f"worker {number}: {reason}"
            for number, answer in answers.items()
            if answer.status_code != 200
            for reason in answer.json()["reasons"]
        ]
        reasons += [f"worker {number}: does not answer" for number in self._silent(answers)]
        if not answers and not reasons:
            reasons = ["no worker serves"]
        if not reasons:
            return 200, _JSON, b'{"status": "ok"}'
        return 503, _JSON, json.dumps({"status": "not ready", "reasons": reasons}).encode()

    async def _metrics(self) -> tuple[int, str, bytes]:
        answers = await self._ask_all("/metrics")
        return 200, CONTENT_TYPE_LATEST, merged(answer.text for answer in answers.values())

    async def _hold(self, host: str) -> tuple[int, str, bytes]:
        answers = await self._ask_all(f"{HOLD}?{urlencode({'of': host})}")
        if self._silent(answers):
            return _PARTIAL
        return 200, _JSON, held_together(each.content for each in answers.values())

    def _silent(self, answers: Mapping[str, httpx.Response]) -> list[str]:
        """The workers that serve and have not answered: they take connections, and hold what nobody else knows of."""
        return [number for number, port in self._workers().items() if port is not None and number not in answers]

    async def _forwarded(self, scope: Scope, path: str) -> tuple[int, str, bytes]:
        """Asked on loopback, a worker answers whoever asks; who may is decided here."""
        refused = self._refused(scope)
        if refused is not None:
            return refused
        query = _query(scope)
        given = _authorization(scope)
        if "worker" not in query:
            if path in _TOGETHER:
                return await self._together(path, query, given)
            if path == REQUEST:
                return await self._story(query, given)
        url = self._url(path, query)
        if not isinstance(url, str):
            return url
        import httpx

        try:
            answer = await self._http().get(url, headers=given, timeout=_ADMIN_WAIT_S)
        except httpx.HTTPError as error:
            return 502, _JSON, _detail(f"the worker does not answer: {type(error).__name__}")
        return answer.status_code, answer.headers.get("content-type", _JSON), answer.content

    def _refused(self, scope: Scope) -> tuple[int, str, bytes] | None:
        peer, _ = scope.get("client") or (None, 0)
        refusal = self._who_may_ask.refusal(peer, scope["headers"])
        return None if refusal is None else (refusal.status, _JSON, _detail(refusal.message))

    def _url(self, path: str, query: dict[str, str]) -> str | tuple[int, str, bytes]:
        """Of the worker that is asked for; or why there is none."""
        workers = self._workers()
        if path in (LIVE, EVENTS):
            if "worker" in query:
                query[ONLY] = "1"
            else:
                query["worker"] = next((number for number, port in workers.items() if port is not None), "0")
        number = query.pop("worker", "0")
        if number not in workers:
            return 404, _JSON, _detail(f"there is no such worker; there are {', '.join(workers)}")
        port = workers[number]
        if port is None:
            return 503, _JSON, _detail("this worker does not serve now")
        return f"http://127.0.0.1:{port}{quote(path)}?{urlencode(query)}"

    async def _events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A worker's stream, until it or the client ends it."""
        refused = self._refused(scope)
        url = self._url(EVENTS, _query(scope)) if refused is None else refused
        if not isinstance(url, str):
            await _respond(send, *url)
            return
        import httpx

        try:
            timeout = httpx.Timeout(_ADMIN_WAIT_S)
            async with self._http().stream("GET", url, headers=_authorization(scope), timeout=timeout) as answer:
                if answer.status_code != 200:
                    await _respond(send, answer.status_code, _JSON, await answer.aread())
                    return
                await stream(_parts(answer), receive, send, {WORKERS: str(len(self._workers()))})
        except httpx.HTTPError as error:
            await _respond(send, 502, _JSON, _detail(f"the worker does not answer: {type(error).__name__}"))

    async def _story(self, query: Mapping[str, str], given: Mapping[bytes, bytes]) -> tuple[int, str, bytes]:
        """Of the worker that has the request."""
        answers = list((await self._ask_all(f"{REQUEST}?{urlencode(query)}", given=given)).values())
        found = next((each for each in answers if each.status_code == 200), None) or next(iter(answers), None)
        if found is None:
            return 503, _JSON, _detail("no worker serves now")
        return found.status_code, _JSON, found.content

    async def _together(
        self, path: str, query: Mapping[str, str], given: Mapping[bytes, bytes]
    ) -> tuple[int, str, bytes]:
        """Attainment, demand, loads or recorded traffic of all workers that answer."""
        asked = dict(query)
        if path == TRAFFIC:
            asked.setdefault("names", secrets.token_hex(16))
        target = f"{path}?{urlencode(asked)}" if asked else path
        by_worker = await self._ask_all(target, given=given, wait_s=_ADMIN_WAIT_S)
        answers = list(by_worker.values())
        if not answers:
            return 503, _JSON, _detail("no worker serves now")
        if path in (LOAD, DEMAND) and self._silent(by_worker):
            return _PARTIAL
        wrong = next((each for each in answers if each.status_code != 200), None)
        if wrong is not None:
            return wrong.status_code, wrong.headers.get("content-type", _JSON), wrong.content
        if path == ATTAINMENT:
            return 200, _JSON, together([read_report(each.content) for each in answers])
        if path == DEMAND:
            return 200, _JSON, msgspec.json.encode(demand_together([read_demand(each.content) for each in answers]))
        if path == LOAD:
            return 200, _JSON, loads_together([read_load(each.content) for each in answers])
        if path == PROFILES:
            return 200, _JSON, profiles_together([read_profiles(each.content) for each in answers])
        if "names" in query:
            lines = b"".join(each.content for each in answers).splitlines(keepends=True)
        else:
            lines = list(traces_merged(row for each in answers for row in rows_of(each.content)))
        newest = _INTEGER.validate_python(query.get("limit", len(lines)))
        return 200, answers[0].headers["content-type"], b"".join(lines[max(0, len(lines) - newest) :])

    async def _ask_all(
        self, path: str, *, given: Mapping[bytes, bytes] | None = None, wait_s: float = _WAIT_S
    ) -> dict[str, httpx.Response]:
        """The answers of the workers that serve, by number; one that is silent or just ended has none."""
        import httpx

        answers = await self._answers(path, given or {}, wait_s)
        return {number: answer for number, answer in answers.items() if isinstance(answer, httpx.Response)}

    async def _answers(
        self, path: str, given: Mapping[bytes, bytes], wait_s: float
    ) -> dict[str, httpx.Response | httpx.HTTPError]:
        """Of the workers that serve, by number, or why there is none."""
        import httpx

        serving = {number: port for number, port in self._workers().items() if port is not None}
        asked = [
            self._http().get(f"http://127.0.0.1:{port}{path}", headers=given, timeout=wait_s)
            for port in serving.values()
        ]
        found: dict[str, httpx.Response | httpx.HTTPError] = {}
        for number, answer in zip(serving, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if not isinstance(answer, httpx.Response | httpx.HTTPError):
                raise answer
            found[number] = answer
        return found

    def _http(self) -> httpx.AsyncClient:
        """Of a library that takes a while to import: made when it is needed."""
        if self._client is None:
            import httpx

            # Without a bound: streams that people watch must not keep probes from an answer.
            self._client = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None))
        return self._client


async def _parts(answer: httpx.Response) -> AsyncIterator[bytes]:
    """What a worker sends, until it ends or breaks off."""
    import httpx

    with contextlib.suppress(httpx.HTTPError):
        async for part in answer.aiter_raw():
            yield part


def _query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))


def _authorization(scope: Scope) -> dict[bytes, bytes]:
    return {name: value for name, value in scope["headers"] if name == b"authorization"}


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def merged(pages: Iterable[str]) -> bytes:
    """One page of Prometheus' text format: each metric once, with the series of all pages."""
    families: dict[str, Metric] = {}
    for page in pages:
        for metric in text_string_to_metric_families(page):
            families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type)).samples.extend(
                metric.samples
            )
    return generate_latest(_Families(families.values()))


def _detail(message: str) -> bytes:
    return json.dumps({"detail": message}).encode()


async def _respond(send: Send, status: int, kind: str, body: bytes) -> None:
    headers: list[tuple[bytes, Any]] = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
