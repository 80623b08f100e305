"""`ballast profile`: what a user types, and engines that are measured as a user would."""

import asyncio
import json
import random
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from ballast_api.hardware_profile import HardwareProfile as Manifest
from ballast_api.loading import load_manifest, load_manifest_files
from ballast_cli.main import app
from ballast_core.profiles import A100_QWEN3_32B, H200_LLAMA3_8B, SHIPPED_PROFILES, HardwareProfile
from tests.support.engine_sim import engine_sim
from tests.support.measured_engine import measure
from tests.support.served_engine import CLI
from tests.support.virtual_clock import VirtualClock

pytestmark = pytest.mark.rotating(4, each=True)

PAIR = "manifests/quickstart/hardware-profiles.yaml"
DECODE_ERROR_RATIO = 0.05
PROMPT_ERROR_RATIO = 0.25
"""What docs/profiles/fit.md says of profiles from scrapes."""


def profile_of(manifest: Manifest) -> HardwareProfile:
    return manifest.spec.to_core(manifest.name)


@pytest.fixture
def step_log(tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in measure(A100_QWEN3_32B).steps))
    return path


def test_show_prints_manifests_that_load_as_the_shipped_profiles() -> None:
    """All of them in one text."""
    result = CliRunner().invoke(app, ["profile", "show", *SHIPPED_PROFILES])
    assert result.exit_code == 0
    shown = [item for item in load_manifest(result.output) if isinstance(item, Manifest)]
    assert [profile_of(item) for item in shown] == list(SHIPPED_PROFILES.values())


def test_fit_writes_a_manifest_and_tells_how_well_it_fits(step_log: Path, tmp_path: Path) -> None:
    """The manifest loads, serves as the base of another fit, and is the JSON's profile."""
    manifest, report = tmp_path / "mine.yaml", tmp_path / "mine.json"
    arguments = ["--base", "h100-qwen3-32b-tp2", "--name", "our-a100", "--hardware", "2 x A100", "--gpus", "2"]
    arguments += ["--kv-tokens", "280000"]
    result = CliRunner().invoke(
        app, ["profile", "fit", str(step_log), *arguments, "--output", str(manifest), "--json", str(report)]
    )
    assert result.exit_code == 0, result.output
    assert "our-a100, from steps:" in result.output
    assert "held out: " in result.output
    (loaded,) = load_manifest_files(manifest)
    assert isinstance(loaded, Manifest)
    profile = profile_of(loaded)
    assert (profile.name, profile.hardware, profile.gpus, profile.kv_tokens) == ("our-a100", "2 x A100", 2, 280_000)
    assert profile.a_ms == pytest.approx(A100_QWEN3_32B.a_ms, rel=0.01)
    assert "held-out error mean 0.0 %" in profile.derivation
    value = json.loads(report.read_text())
    assert value["profile"]["a_ms"] == profile.a_ms
    assert value["held_out"]["max_ratio"] < 0.01
    assert value["kept"] == {}
    again = CliRunner().invoke(app, ["profile", "fit", str(step_log), "--base", str(manifest), "--output", "-"])
    assert again.exit_code == 0
    assert yaml.safe_load(again.stdout)["metadata"] == {"name": "our-a100-fitted"}


def test_a_poor_fit_warns_and_still_writes(tmp_path: Path) -> None:
    """The user decides."""
    rng = random.Random(0)
    rows = [{**row, "duration_ms": rng.uniform(1, 500)} for row in measure(A100_QWEN3_32B, 40).steps]
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = CliRunner().invoke(app, ["profile", "fit", str(path), "--base", "a100-qwen3-32b", "--json", "-"])
    assert result.exit_code == 0
    assert "warning: the fit is poor" in result.stderr
    assert json.loads(result.stdout)["warnings"]


def test_steps_of_one_time_have_no_r2(tmp_path: Path) -> None:
    """What rounding leaves of their variance is no measure of anything. A byte order mark is no part of a column."""
    path = tmp_path / "steps.csv"
    header = "duration_ms,decodes,decode_context_tokens,tokens,prefill_pairs"
    path.write_text("\n".join((header, *["20.1,4,4000,4,0"] * 400)), encoding="utf-8-sig")
    told = CliRunner().invoke(app, ["profile", "fit", str(path), "--base", "a100-qwen3-32b"])
    assert told.exit_code == 0, told.output
    assert "max 0.00%, R2 not defined: all took the same time" in told.stdout
    report = CliRunner().invoke(app, ["profile", "fit", str(path), "--base", "a100-qwen3-32b", "--json", "-"])
    assert json.loads(report.stdout)["held_out"]["r2"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base", "h20"], "--base: 'h20' is no file and no profile; did you mean h20-"),
        (["--base", PAIR], f"--base: {PAIR} must hold one HardwareProfile, not 2"),
        (["--base", "a100-qwen3-32b", "--from", "tea"], "--from: must be steps, bench, metrics, not 'tea'"),
        (["--base", "a100-qwen3-32b", "--name", "Mine"], "--name: must be lower-case letters"),
        (["--base", "a100-qwen3-32b", "--from", "bench"], "steps.jsonl: no start_times"),
        (["--base", "a100-qwen3-32b", "--from", "metrics"], "steps.jsonl: no vllm: metrics"),
        (["--base", "a100-qwen3-32b", "--output", "/nowhere/x.yaml"], "--output: /nowhere/x.yaml: its folder does not"),
        (["--base", "a100-qwen3-32b", "--output", "-", "--json", "-"], "--output, --json: standard output takes one"),
        (["--base", PAIR, "--json", PAIR], f"--json: {PAIR}: would overwrite {PAIR}"),
        (["--base", "a100-qwen3-32b", "--kv-tokens", "9" * 12], "--kv-tokens: must be 2147483647 or less, not 9999"),
        (["--base", "a100-qwen3-32b", "--gpus", "9" * 12, "--json", "-"], "--gpus: must be 2147483647 or less"),
        (["--base", "a100-qwen3-32b", "/nowhere.jsonl"], "/nowhere.jsonl: cannot be read: No such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[-2:]),
)
def test_what_cannot_work_is_refused_without_a_traceback(arguments: list[str], message: str, step_log: Path) -> None:
    """Status 2; the option or file, and the reason."""
    result = CliRunner().invoke(app, ["profile", "fit", str(step_log), *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert isinstance(result.exception, SystemExit)


def test_files_of_two_kinds_are_refused(step_log: Path, tmp_path: Path) -> None:
    """A folder is always scrapes."""
    (tmp_path / "scrapes").mkdir()
    result = CliRunner().invoke(
        app, ["profile", "fit", str(step_log), str(tmp_path / "scrapes"), "--base", "a100-qwen3-32b"]
    )
    assert result.exit_code == 2
    assert "different kinds (metrics, steps); fit one kind at a time" in result.output


def test_an_unknown_profile_to_show_names_the_nearest() -> None:
    result = CliRunner().invoke(app, ["profile", "show", "h100-lama3-8b"])
    assert result.exit_code == 2
    assert "did you mean h100-llama3-8b, " in result.output


async def scrapes_of_a_served_engine(profile: HardwareProfile, seconds: float, seed: int) -> str:
    """Load that comes and goes, scraped three times a second of the engine's time."""
    rng, clock = random.Random(seed), VirtualClock()
    tasks: list[asyncio.Task[None]] = []
    scrapes: list[str] = []

    async def ask(client: httpx.AsyncClient) -> None:
        prompt = [rng.randrange(10, 2000) for _ in range(rng.choice([30, 300, 900, 2000]))]
        body = {"model": "m", "prompt": prompt, "max_tokens": rng.choice([60, 200, 400]), "ignore_eos": True}
        (await client.post("/v1/completions", json=body)).raise_for_status()

    async with engine_sim(profile=profile, clock=clock) as (server, client):
        under_way = server.service.sinks
        while (now_s := clock.time()) < seconds:
            wanted = (2, 8, 20, 40, 64, 30, 12)[int(now_s / seconds * 7)]
            while (count := len(under_way)) < wanted:
                tasks.append(asyncio.create_task(ask(client)))
                while len(under_way) == count:  # noqa: ASYNC110 - until the server has it
                    await asyncio.sleep(0)
            if now_s >= len(scrapes) * 0.33:
                scrapes.append((await client.get("/metrics")).text)
            clock.advance(now_s + 0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return "".join(scrapes)


@pytest.mark.rotating(2)
@pytest.mark.parametrize("seed", [1, 3])
async def test_scrapes_of_a_served_engine_give_its_profile(tmp_path: Path, seed: int) -> None:
    """Over HTTP; what is fitted predicts the steps of the profile that it serves with, from another base."""
    truth = H200_LLAMA3_8B
    scrapes, report = tmp_path / "metrics.txt", tmp_path / "fit.json"
    scrapes.write_text(await scrapes_of_a_served_engine(truth, 28, seed))
    command = [*CLI, "profile", "fit", str(scrapes), "--base", "h100-llama3-8b", "--json", str(report)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = HardwareProfile(**json.loads(report.read_text())["profile"])
    assert found.kv_tokens == pytest.approx(truth.kv_tokens, abs=truth.block_size)
    for decodes in (1, 8, 32, 60):
        for context in (300, 1000):
            step = (decodes, decodes * context, 0.0, decodes)
            assert found.step_s(*step) == pytest.approx(truth.step_s(*step), rel=DECODE_ERROR_RATIO), step
    for prompt in (500, 2000):
        mixed = (prompt + 20, 20 * 500, prompt**2 / 2, 20)
        assert found.step_s(*mixed) == pytest.approx(truth.step_s(*mixed), rel=PROMPT_ERROR_RATIO), mixed
