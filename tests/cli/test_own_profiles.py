"""Hardware profiles of one's own, from a step log to a simulated fleet, a calibration and a served engine."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_cli.profile import manifest
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B, SHIPPED_PROFILES, HardwareProfile
from ballast_sim.engine_sim.options import OptionError, parse_options
from ballast_sim.own_profiles import ProfileFileError, read_profiles
from ballast_sim.simulation.capacity.cache import fingerprint
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.runs.experiment import Setup
from tests.support.measured_engine import measure

OURS = replace(A100_QWEN3_32B, name="ours")
SLOW = replace(A100_QWEN3_32B, name="slow", a_ms=3 * A100_QWEN3_32B.a_ms)
SHORT = ["--workload", "chat", "--limit", "40", "--policy", "least-requests", "--seed", "0,1", "--json", "-"]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts profiles into one manifest; capacities are cached beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def written(*profiles: HardwareProfile, name: str = "profiles.yaml") -> Path:
        path = tmp_path / name
        path.write_text("---\n".join(map(manifest, profiles)))
        return path

    return written


def simulate(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["simulate", *SHORT, *arguments])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def timing(rows: list[dict[str, Any]]) -> list[Any]:
    return [[row[name] for name in ("ttft_s", "tpot_s", "e2e_s", "preemptions")] for row in rows]


@pytest.mark.rotating(3)
def test_an_engine_that_was_measured_is_simulated_like_the_one_behind_the_log(tmp_path: Path) -> None:
    """Step log of our engine, fit, simulation in two processes: every time within 2 % of the true profile's."""
    log, fitted = tmp_path / "steps.jsonl", tmp_path / "fitted.yaml"
    log.write_text("".join(json.dumps(row) + "\n" for row in measure(A100_QWEN3_32B).steps))
    result = CliRunner().invoke(
        app,
        ["profile", "fit", str(log), "--base", "h100-qwen3-32b-tp2", "--name", "measured", "--output", str(fitted)],
    )
    assert result.exit_code == 0, result.output
    theirs = simulate("--endpoints", "1P1D@measured", "--profiles", str(fitted), "--jobs", "2")
    truth = simulate("--endpoints", "1P1D@a100-qwen3-32b")
    for ours, true in zip(theirs, truth, strict=True):
        assert ours["completed"] == true["completed"] == 40
        for figure in ("mean", "p50", "p99"):
            assert ours["tpot_s"][figure] == pytest.approx(true["tpot_s"][figure], rel=0.02)


@pytest.mark.rotating(3)
def test_profiles_come_from_several_documents_and_files(write: Write) -> None:
    """Numbers decide, not names: a copy of a shipped profile gives its figures, in worker processes as here."""
    both, slow = write(OURS, H20_QWEN3_32B), write(SLOW, name="slow.json")
    files = ["--profiles", str(both), "--profiles", str(slow)]
    ours = simulate("--endpoints", "1P1D@ours", *files, "--jobs", "2")
    assert timing(ours) == timing(simulate("--endpoints", "1P1D@a100-qwen3-32b"))
    slower = simulate("--endpoints", "1P1D", "--profile", "slow", *files)
    assert slower[0]["tpot_s"]["p50"] > 2 * ours[0]["tpot_s"]["p50"]


def test_json_is_read_too(tmp_path: Path) -> None:
    """As `kubectl get -o json` prints a list."""
    path = tmp_path / "list.json"
    spec = {"apiVersion": "v1", "kind": "List", "items": [load(manifest(OURS)), load(manifest(SLOW))]}
    path.write_text(json.dumps(spec))
    assert read_profiles([path]) == {**SHIPPED_PROFILES, "ours": OURS, "slow": SLOW}


def load(text: str) -> object:
    import yaml

    return yaml.safe_load(text)


def test_a_name_means_one_set_of_numbers(write: Write) -> None:
    """The same again is harmless; another profile under a taken name is refused with file, name and field."""
    same = write(OURS, OURS, H20_QWEN3_32B)
    assert read_profiles([same, same])["ours"] == OURS
    shipped = write(replace(H20_QWEN3_32B, kv_tokens=160), name="shipped.yaml")
    with pytest.raises(ProfileFileError, match=r"shipped\.yaml: h20-qwen3-32b is .* a shipped profile.* in kv_tokens"):
        read_profiles([shipped])
    other = write(replace(OURS, gpus=7), name="other.yaml")
    with pytest.raises(ProfileFileError, match=r"other\.yaml: ours is .* read before it, which differs in gpus"):
        read_profiles([same, other])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "holds no HardwareProfile"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"a: [", "is not YAML"),
        (b"apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n", "holds no HardwareProfile"),
        (manifest(OURS).replace("kvTokens: ", "kvTokens: -").encode(), "kvTokens"),
        (manifest(OURS).replace("name: ours", "name: Our_A100").encode(), "metadata.name"),
    ],
    ids=["empty", "binary", "broken", "another kind", "negative", "name"],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(text: bytes, message: str, tmp_path: Path) -> None:
    """By every command that takes one."""
    path = tmp_path / "p.yaml"
    path.write_bytes(text)
    fleet = ["--workload", "chat", "--limit", "5", "--endpoints", "1P1D@ours", "--profiles", str(path)]
    for command in (["simulate", "--policy", "ils"], ["calibrate"]):
        result = CliRunner().invoke(app, [*command, *fleet])
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith(f"error: --profiles: {path}")
        assert message in result.stderr
    with pytest.raises(OptionError, match="--profiles: "):
        parse_options(["m", "--profiles", str(path)], {})


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.yaml", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(ProfileFileError, match=f"--profiles: {path}: {reason}"):
            read_profiles([path])


def test_engine_sim_serves_a_profile_of_a_file(write: Write) -> None:
    """By flag or by name in the environment; without either the default stays."""
    files = ["--profiles", str(write(OURS, SLOW))]
    assert parse_options(["m", *files, "--profile", "slow"], {})[0].profile == SLOW
    assert parse_options(["m", *files], {"BALLAST_PROFILE": "ours"})[0].profile == OURS
    assert parse_options(["m", *files], {})[0].profile == H20_QWEN3_32B


def test_calibrate_learns_engines_of_a_file(write: Write) -> None:
    files = ["--profiles", str(write(SLOW))]
    sizes = ["--workload", "chat", "--limit", "60", "--simulate", "40", "--json", "-"]
    result = CliRunner().invoke(app, ["calibrate", *sizes, "--endpoints", "1P1D@slow", *files])
    assert result.exit_code == 0, result.output
    assert [fleet["endpoints"] for fleet in json.loads(result.stdout)["fleet"]] == ["1P1D@slow"] * 2


def test_a_measured_capacity_belongs_to_the_numbers_of_a_profile() -> None:
    """One name, other numbers: another capacity is measured."""

    def key(profile: HardwareProfile) -> str:
        machines = parse_shape("1P1D@ours", profiles={"ours": profile})
        return fingerprint(Setup(machines=machines, shape="1P1D@ours", source=WorkloadSource(workload="chat")))

    assert key(OURS) == key(replace(SLOW, name="ours", a_ms=OURS.a_ms))
    for changed in (replace(OURS, a_ms=2 * OURS.a_ms), replace(OURS, kv_tokens=OURS.kv_tokens + 16)):
        assert key(changed) != key(OURS)
