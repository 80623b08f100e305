"""What a first-time user may feed the simulator's commands: one clear message, status 2, never a traceback."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ballast_cli.main import app
from ballast_cli.simulate_view import View
from ballast_sim.load.prompts import PromptMaker

pytestmark = pytest.mark.rotating(4, each=True)

CLI = [sys.executable, "-m", "ballast_cli"]
ENGINE = ["--endpoints", "1P1D@a100-qwen3-32b"]
TINY = ["--workload", "chat", "--limit", "5", "--policy", "ils"]
HEADER = b"arrival_s,input_tokens,output_tokens\n"
PACKED = gzip.compress(HEADER + b"0,5,1\n" * 2000)


def refused(*arguments: str) -> Result:
    """The result of a command that must say why it did nothing."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""
    return result


TRACES = {
    "corrupt gzip": (PACKED[:15] + b"\x00\x99\x13" + PACKED[18:], "is not a sound gzip file"),
    "binary": (b"PK\x03\x04" + bytes(60), "is not a text file"),
    "a JSON array": (b'[{"arrival_s": 0}]', "line 1: is a JSON array; write one object a line"),
    "endless field": (HEADER + b'0,"' + b"1" * 200_000 + b'",5\n', "line 2: is not CSV: field larger"),
    "deep JSON": (b'{"arrival_s":' + b"[" * 100_000, "line 1: is not JSON"),
    "huge count": (HEADER + b"0,1,5\n0,1," + b"9" * 30 + b"\n", "line 3: column output_tokens: 1e+30 is above 1e+12"),
    "endless digits": (HEADER + b"0,1," + b"9" * 5000 + b"\n", f"'{'9' * 40}...' is not finite"),
    "blank lines": (HEADER + b"0,1,5\n\n\n1,-1,5\n", "line 5: column input_tokens: '-1' is negative"),
    "milliseconds": (HEADER + b"0,1,5\n1e12,1,5\n", "line 3: column arrival: is more than ten years after"),
    "session": (
        b'{"Timestamp":1,"Request tokens":1,"Response tokens":2,"Session ID":[1]}\n',
        "column Session ID: must be a number or a text",
    ),
}


@pytest.mark.parametrize(("content", "message"), TRACES.values(), ids=TRACES)
def test_a_trace_that_is_no_trace_is_named_with_line_and_reason(content: bytes, message: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_bytes(content)
    result = refused("simulate", "--trace", str(trace), *ENGINE, "--policy", "ils")
    assert str(trace) in result.stderr
    assert message in result.stderr


def test_text_of_other_systems_is_read(tmp_path: Path) -> None:
    """A byte order mark and CRLF change nothing."""
    trace = tmp_path / "trace.csv"
    trace.write_bytes(b"\xef\xbb\xbf" + (HEADER + b"0,1,5\n1,2,3\n").replace(b"\n", b"\r\n"))
    result = CliRunner().invoke(
        app, ["simulate", "--trace", str(trace), *ENGINE, "--policy", "ils", "--json", "-", "--jobs", "1"]
    )
    assert json.loads(result.stdout)[0]["completed"] == 2


def test_a_pipe_that_is_read_twice_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for command in (["simulate", *ENGINE, "--policy", "ils", "--trace"], ["calibrate", "--trace"]):
        assert f"{pipe}: cannot be read: it is a pipe" in refused(*command, str(pipe)).stderr
    assert "it is a pipe" in refused("profile", "fit", str(pipe), "--base", "h20-qwen3-32b").stderr


OPTIONS = {
    "tiny rate": (["--rate", "1e-300"], "--rate-scale, --rate: chat then lasts more than ten years"),
    "tiny interval": (["--scrape-interval", "1e-300"], "--scrape-interval: must be 0.001 s or more"),
    "even arrivals": (["--arrivals", "gamma:1e-300"], "--arrivals: gamma takes a number from 0.01 to 100"),
    "wild arrivals": (["--arrivals", "gamma:1e300"], "--arrivals: gamma takes a number from 0.01 to 100"),
    "poisson of what": (["--arrivals", "poisson:3"], "--arrivals: poisson takes no number"),
    "threshold twice": (["--slo", "ttft=1,ttft=2"], "--slo: ttft is given twice"),
    "unused profile": (["--profile", "nope"], "--profile: unknown profile 'nope'"),
    "page to stdout": (["--html", "-"], "--html: writes a file only"),
    "nul": (["--json", "a\0b"], "--json: 'a\\x00b' is no file name"),
    "no name": (["--json", ""], "--json: "),
    "full disk": (["--json", "/dev/full"], "--json: /dev/full: cannot be written: No space left"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_an_option_that_cannot_work_is_named(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *TINY, *ENGINE, "--jobs", "1", *options])
    assert result.exit_code == 2, (result.output, result.exception)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--duration", "inf"], "--duration: must be finite without a --limit"),
        (["--limit", "9" * 30], "--limit: must be 100,000,000 requests or fewer"),
        (["--rate-scale", "1e9"], "--rate-scale: 6e+09 requests a second for 600 s are more than the 100,000,000"),
        (["--rate-scale", "1e300"], "--rate-scale: 6e+300 requests a second"),
        (["--duration", "1e12"], "--duration: 6 requests a second for 1e+12 s are more than"),
        (["--arrivals", "burst:500000000"], "--arrivals: a burst of 5e+08 is more than the 100,000,000 requests"),
        (["--gateways", "100000000"], "--gateways: must be 1,000 or fewer"),
    ],
)
def test_a_workload_without_end_is_refused(options: list[str], message: str) -> None:
    assert message in refused("simulate", "--workload", "chat", "--policy", "ils", *ENGINE, *options).stderr


def test_more_requests_than_memory_holds_are_refused_of_lengths_and_for_a_server_too(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input_tokens,output_tokens\n5,1\n")
    drawn = refused("simulate", "--trace", str(lengths), "--policy", "ils", *ENGINE, "--rate-scale", "1e9")
    assert "--rate-scale: 1e+09 requests a second for 600 s are more than" in drawn.stderr
    sent = refused("load", "--url", "http://127.0.0.1:9", "--model", "m", "--rate", "1e9")
    assert "--rate: 1e+09 requests a second for 60 s are more than" in sent.stderr


LOAD = ["load", "--url", "http://127.0.0.1:1", "--model", "m", "--workload", "chat", "--duration", "1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "0"], "--limit: must be 1 request or more, not 0"),
        (["--limit", "-1"], "--limit: must be 1 request or more, not -1"),
        (["--limit", "9" * 30], "--limit: must be 100,000,000 requests or fewer"),
        (["--seed", "-1"], "--seed: must be 0 or more, not -1"),
        (["--time-scale", "inf"], "--time-scale: must be above 0 and finite, not inf"),
        (["--time-scale", "1e300"], "--time-scale: must be 1000 or less"),
        (["--timeout", "inf"], "--timeout: must be above 0 and finite"),
        (["--url", "ftp://x"], "--url: 'ftp://x' is not an http:// or https:// URL"),
        (["--url", "http://127.0.0.1:99999"], "--url: 'http://127.0.0.1:99999': Port out of range"),
        (["--url", "http://[::1"], "--url: 'http://[::1': Invalid IPv6 URL"),
        (["--api-key", "k\nx: y"], "--api-key: must be one line of ASCII"),
        (["--json", "/nonexistent/x.json"], "--json: /nonexistent/x.json: its folder does not exist"),
    ],
)
def test_load_refuses_what_cannot_work_before_it_sends(options: list[str], message: str) -> None:
    assert message in refused(*LOAD, *options).stderr


def test_load_does_not_overwrite_its_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(HEADER + b"0,1,5\n")
    stderr = refused(*LOAD[:5], "--trace", str(trace), "--json", str(trace)).stderr
    assert "--json: " in stderr and "would overwrite" in stderr  # noqa: PT018
    assert trace.read_bytes() == HEADER + b"0,1,5\n"


@pytest.mark.parametrize("url", ["http://a..b:80", "http://127.0.0.1:0", "http://127.0.0.1:1"])
def test_a_server_that_cannot_be_reached_fails_every_request_and_the_command(url: str) -> None:
    """The first reason is told with each kind of failure."""
    result = CliRunner().invoke(app, [*LOAD, "--url", url, "--limit", "2"])
    assert (result.exit_code, result.exception and type(result.exception)) == (1, SystemExit)
    assert "2 requests, 0 completed, 2 failed" in result.stdout
    assert f"connect: 2, the first one: cannot connect to {url.removeprefix('http://')}: " in result.stdout


def test_a_report_that_finds_no_room_is_printed() -> None:
    result = CliRunner().invoke(app, [*LOAD, "--limit", "2", "--json", "/dev/full"])
    assert result.exit_code == 2
    assert "2 requests, 0 completed, 2 failed" in result.stdout
    assert "--json: /dev/full: cannot be written: No space left" in result.stderr


@pytest.mark.parametrize("shape", ["999999999999C@a100-qwen3-32b", f"{'9' * 5000}C@a100-qwen3-32b"])
def test_a_fleet_beyond_all_measure_is_refused(shape: str) -> None:
    assert "more than 10,000 endpoints" in refused("simulate", *TINY, "--endpoints", shape).stderr


def test_outputs_never_overwrite_inputs_or_each_other(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.csv", str(tmp_path / "out")
    trace.write_bytes(HEADER + b"0,1,5\n")
    run = ["simulate", "--trace", str(trace), *ENGINE, "--policy", "ils"]
    assert "--json: " in refused(*run, "--json", f"{tmp_path}/./trace.csv").stderr
    assert trace.read_bytes() == HEADER + b"0,1,5\n"
    assert "would overwrite --json" in refused(*run, "--json", out, "--html", out).stderr
    assert "would overwrite" in refused("validate", str(trace), "--json", str(trace)).stderr


SCRIPTS = {
    "huge": ("- {at_s: 1" + "0" * 400 + ", endpoint: 0, kind: drain}", "entry 1: at_s: must be 1e+09 or less"),
    "endless digits": ("- {at_s: 1" + "0" * 5000 + ", endpoint: 0, kind: drain}", "neither JSON nor YAML"),
    "no date": ("- {at_s: 2026-99-99, endpoint: 0, kind: drain}", "neither JSON nor YAML (month must be in 1..12)"),
    "deep": ("[" * 3000, "neither JSON nor YAML"),
    "standstill": ("- {at_s: 0, endpoint: 0, kind: slow, factor: 1.0e+300, for_s: 3}", "factor: must be 1e+09 or less"),
}


@pytest.mark.parametrize(("script", "message"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_of_failures_beyond_measure_is_refused(script: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(script)
    stderr = refused("simulate", *TINY, *ENGINE, "--failures", str(path)).stderr
    assert stderr.startswith(f"error: --failures: {path}: ")
    assert message in stderr


def test_policies_of_one_name_are_refused(tmp_path: Path) -> None:
    """Their rows could not be told apart."""
    path = tmp_path / "policies.yaml"
    policy = "apiVersion: serving.ballast.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: ils}\nspec: {}\n"
    path.write_text(policy)
    run = ["simulate", "--workload", "chat", "--limit", "5", *ENGINE, "--policy-file", str(path)]
    assert "'ils' is named twice" in refused(*run, "--policy", "ils").stderr
    path.write_text(f"{policy}---\n{policy}")
    assert "'ils' is named twice" in refused(*run).stderr
    path.write_text("[" * 5000)
    assert f"--policy-file: {path}: is not YAML" in refused(*run).stderr


def test_broken_measurements_and_golden_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    row = f'{{"duration_ms":1,"decodes":1{"0" * 400},"decode_context_tokens":5,"tokens":1,"prefill_pairs":0}}\n'
    for content in (row.encode(), b"[" * 100_000, b"\x1f\x8b junk"):
        path.write_bytes(content)
        assert str(path) in refused("profile", "fit", str(path), "--base", "h20-qwen3-32b").stderr
        assert str(path) in refused("validate", str(path)).stderr
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(PACKED[:15] + b"\x00\x99\x13" + PACKED[18:])
    assert f"{packed}: cannot be read" in refused("profile", "fit", str(packed), "--base", "h20-qwen3-32b").stderr
    assert f"{packed}: cannot be read" in refused("validate", str(packed)).stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "h20-qwen3-32b"], "--profile: belongs to a fleet; give --endpoints"),
        (["--rate-scale", "0"], "--rate-scale: belongs to a fleet; give --endpoints, too"),
        (["--policy", "random", "--simulate", "9"], "--policy, --simulate: belong to a fleet; give --endpoints, too"),
        (["--policy", "nope"], "--policy: unknown placement 'nope'"),
        (["--json", "/"], "--json: /: is a folder"),
        (["--json", "/dev/full"], "--json: /dev/full: cannot be written"),
    ],
)
def test_calibrate_passes_nothing_over(options: list[str], message: str) -> None:
    assert message in refused("calibrate", "--workload", "chat", "--limit", "30", *options).stderr


@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [["policies"], ["simulate", "--help"], ["--help"]], ids=" ".join)
def test_standard_output_without_room_is_reported_in_a_line(arguments: list[str], buffering: str) -> None:
    """Whether the write fails at once or only when the buffer is flushed."""
    environment = {**os.environ, "PYTHONUNBUFFERED": buffering}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*CLI, *arguments], env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "error: standard output: cannot be written: No space left on device\n"


@pytest.mark.parametrize("arguments", [["policies"], ["profiles"], ["profile", "show", "h20-qwen3-32b"]], ids=" ".join)
def test_a_closed_standard_output_takes_nothing_and_breaks_nothing(arguments: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *CLI, *arguments], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_with_a_closed_standard_output_ends_as_with_an_open_one() -> None:
    """No socket and no loop takes the number of a standard file."""
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- <&-', "sh", *CLI, *LOAD, "--limit", "2"], stderr=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_run_with_a_closed_standard_error_keeps_its_report(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *CLI, *LOAD, "--limit", "2", "--json", str(report)]
    assert subprocess.run(command, check=False).returncode == 1
    assert json.loads(report.read_text())["requests"] == 2


def test_a_request_that_cannot_be_written_ends_a_load_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise ValueError("cannot be written")

    monkeypatch.setattr(PromptMaker, "body", refuse)
    assert refused(*LOAD).stderr == "error: cannot be written\n"


def test_prefixes_may_have_names_below_0(tmp_path: Path) -> None:
    """As hashes of 64 bits have in some languages; nobody listens."""
    trace = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [-1, 2]}
    trace.write_text(json.dumps(line) + "\n")
    done = subprocess.run([*CLI, *LOAD[:5], "--trace", str(trace)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "connect: 1" in done.stdout


def test_names_that_the_locale_lacks_are_escaped(tmp_path: Path) -> None:
    trace = tmp_path / "été.csv"
    trace.write_bytes(HEADER + b"0,1,5\n")
    done = subprocess.run(
        [*CLI, "simulate", "--trace", str(trace), *ENGINE, "--policy", "ils", "--jobs", "1"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\xe9t\\xe9.csv on 1P1D" in done.stdout


@pytest.mark.parametrize("width", [20, 60, 300])
def test_a_narrow_terminal_cuts_no_figure(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the table is too wide it stands on end."""
    command = ["simulate", *TINY, *ENGINE, "--json", "-", "--jobs", "1"]
    rows = json.loads(CliRunner().invoke(app, command).stdout)
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    View(plain_stdout=True).table(rows)
    text = capsys.readouterr().out
    assert "…" not in text
    assert "TPOT p50 ms" in text
    assert f"{rows[0]['throughput_tok_s']:.0f}" in text
