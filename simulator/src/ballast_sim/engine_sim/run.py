"""One server as a process: it serves until a signal asks it to stop."""

import asyncio
import signal
from collections.abc import Callable

from ballast_sim.engine_sim.options import ServerOptions
from ballast_sim.engine_sim.server import EngineSimServer


async def serve(options: ServerOptions, announce: Callable[[EngineSimServer], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends without waiting. Raises ListenError where a port is taken."""
    server = EngineSimServer(options)
    await server.start()
    if announce is not None:
        announce(server)
    loop, asked, again = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (again if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await asked.wait()
    stopping = asyncio.ensure_future(server.stop())
    impatient = asyncio.ensure_future(again.wait())
    await asyncio.wait([stopping, impatient], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, impatient):
        task.cancel()
    await asyncio.gather(stopping, impatient, return_exceptions=True)
