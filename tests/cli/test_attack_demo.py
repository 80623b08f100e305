"""`ballast demo` treated badly: it says what is wrong, and leaves nothing behind however it is stopped."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ballast_api.loading import load_manifest_files
from ballast_cli.demo import cases
from ballast_cli.demo.cases import quickstart_folder
from ballast_cli.demo.plan import plan_fleet
from ballast_cli.demo.processes import ProcessGroup
from ballast_cli.demo.report import load_words
from ballast_sim.capacity import Capacity
from tests.support.gateway_kit import until

pytestmark = pytest.mark.rotating(4, each=True)

ROOT = Path(__file__).parents[2]


def demo(*arguments: str, cwd: Path = ROOT, temp: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ballast_cli", "demo", *arguments],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "200"} | ({} if temp is None else {"TMPDIR": str(temp)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - a test, no threads
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--duration", "inf"], "--duration: a built-in workload never ends by itself"),
        (["--rate-scale", "inf"], "--rate-scale: must be above 0 and finite"),
        (["--manifests", "nowhere"], "--manifests: there is no nowhere"),
        (["--policy", "magic"], "--policy: unknown placement 'magic'; 17 are known, see `ballast policies`"),
    ],
)
def test_what_cannot_work_is_said_with_the_option(arguments: list[str], says: str) -> None:
    process = demo(*arguments)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert says in output
    assert "Traceback" not in output


def test_outside_of_the_repository_it_finds_the_quickstart(tmp_path: Path) -> None:
    """The manifests are read before the workload, which ends this run."""
    process = demo("--duration", "inf", cwd=tmp_path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--duration: a built-in workload never ends by itself" in output


def test_a_wheel_carries_the_quickstart_as_the_package_data_that_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One source: the build copies `manifests/quickstart` to the folder that the command resolves in the package."""
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "force-include"
    ]
    assert quickstart_folder() == ROOT / "manifests/quickstart"
    for source, target in included.items():
        shutil.copytree(ROOT / source, tmp_path / target)
    shutil.copy(ROOT / "cli/src/ballast_cli/__init__.py", tmp_path / "ballast_cli")
    installed = importlib.util.spec_from_file_location("ballast_cli", tmp_path / "ballast_cli/__init__.py")
    assert installed is not None
    monkeypatch.setattr(cases, "ballast_cli", importlib.util.module_from_spec(installed))
    found = quickstart_folder()
    assert found.is_relative_to(tmp_path)
    assert plan_fleet(load_manifest_files(found)).shape == "2P4D"


def listens(port: int) -> bool:
    """Whether anybody does there."""
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def logs(temp: Path) -> str:
    return "".join(log.read_text() for log in temp.glob("ballast-demo-*/prefill-0.log"))


async def served_port(temp: Path) -> int:
    """The port of an engine that serves."""
    async with asyncio.timeout(60):
        while True:
            found = re.search(r"serving on port (\d+)", logs(temp))
            if found:
                return int(found[1])
            await asyncio.sleep(0.05)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_every_process_and_removes_every_file(tmp_path: Path, number: signal.Signals) -> None:
    """A closed terminal or `timeout` must not leave six engines behind."""
    process = demo("--case", "quiet", "--duration", "60", temp=tmp_path)
    try:
        port = await served_port(tmp_path)
        process.send_signal(number)
        output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "nothing is left running" in output
    assert os.listdir(tmp_path) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.rotating(4)
@pytest.mark.skipif(sys.platform != "linux", reason="the system must end them")
async def test_a_demo_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    process = demo("--case", "quiet", "--duration", "60", temp=tmp_path)
    port = await served_port(tmp_path)
    process.kill()
    await asyncio.to_thread(process.communicate, timeout=60)
    await until(lambda: not listens(port), 60)


def test_a_second_interrupt_while_ending_kills_what_is_left(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with ProcessGroup(tmp_path) as group:
            process = group.start("deaf", ["version"])
            process.popen.wait()
            process.popen = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
            assert process.popen.stdout is not None
            process.popen.stdout.readline()
            process.popen.stdout.close()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert process.popen.returncode == -signal.SIGKILL
    assert process.ending == "was killed by SIGKILL"


def test_the_rate_that_fits_counts_from_the_workload_not_from_the_scale_in_use() -> None:
    """At --rate-scale 5 a fleet that carries 0.3 of the load wants --rate-scale 1.5."""
    carried = Capacity(prefill_rps=10.0, decode_rps=20.0)
    assert "try --rate-scale 1.33" in load_words(carried, 30.0, 0.8, rate_scale=5.0)
    assert "try --rate-scale" not in load_words(carried, 30.0 * 1.33 / 5.0, 0.8, rate_scale=1.33)
