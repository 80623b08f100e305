"""`ballast simulate` as a user runs it: rows, JSON, report, cache, refusals, Ctrl-C."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_core.policies.placement.registry import ALL_PLACEMENTS, PLACEMENTS
from ballast_core.policies.registry import PARTS, PLACEMENT, SCALING

pytestmark = pytest.mark.rotating(4, each=True)

CLI = [sys.executable, "-m", "ballast_cli"]
FLEET = ["--endpoints", "2P2D", "--profile", "a100-qwen3-32b"]
SHORT = ["--workload", "chat", "--limit", "60", *FLEET]
TRACES = Path(__file__).parents[3] / "shared" / "traces"

NUMBER_OR_NULL = {"type": ["number", "null"]}


def numbers(*names: str) -> dict[str, Any]:
    """The schema of an object with exactly these numbers."""
    return {
        "type": "object",
        "required": list(names),
        "additionalProperties": False,
        "properties": dict.fromkeys(names, NUMBER_OR_NULL),
    }


TIMES = numbers("mean", "p50", "p90", "p95", "p99", "p999")
ROW = {
    "policy": {"type": "string"},
    "requests": {"type": "integer", "minimum": 1},
    "completed": {"type": "integer", "minimum": 0},
    "ttft_s": TIMES,
    "tpot_s": TIMES,
    "e2e_s": TIMES,
    "goodput_rps": {"type": "number"},
    "attainment": {"type": "number", "minimum": 0, "maximum": 1},
    "throughput_tok_s": {"type": "number"},
    "preemptions": {"type": "integer"},
    "migrations": {"type": "integer"},
    "kv_hit_ratio": {"type": "number", "minimum": 0, "maximum": 1},
    "optimal_assignment_ratio": NUMBER_OR_NULL,
    "decision_us": numbers("p50", "p99"),
    "sim_wall_s": {"type": "number"},
    "rate_rps": NUMBER_OR_NULL,
    "load": NUMBER_OR_NULL,
    "seed": {"type": "integer"},
    "versions": {"type": "object", "required": ["ballast", "python", "numpy"]},
}
ARRAY = {"type": "array", "items": {"type": "object", "required": list(ROW), "properties": ROW}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ballast" / "capacity"


def simulate(*arguments: str) -> list[dict[str, Any]]:
    """The rows of a run that succeeds; standard output holds them and nothing else."""
    result = CliRunner().invoke(app, ["simulate", *arguments, "--json", "-"])
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def decided(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what depends on the machine's speed."""
    return [{key: row[key] for key in row if key not in ("decision_us", "sim_wall_s")} for row in rows]


def test_one_row_for_each_policy_and_seed_in_the_documented_form() -> None:
    """Policies outermost; the name as it was given; both placements spelled out beside it."""
    rows = simulate(*SHORT, "--policy", "least-requests,round-robin/least-requests", "--seed", "0,7")
    jsonschema.validate(rows, ARRAY)
    assert [(row["policy"], row["seed"]) for row in rows] == [
        ("least-requests", 0),
        ("least-requests", 7),
        ("round-robin/least-requests", 0),
        ("round-robin/least-requests", 7),
    ]
    assert rows[0]["placements"].endswith("/least-requests")
    assert rows[2]["placements"] == "round-robin/least-requests"
    assert all(row["requests"] == row["completed"] == 60 for row in rows)
    assert rows[0]["ttft_s"] != rows[1]["ttft_s"]


def test_figures_do_not_depend_on_the_number_of_processes() -> None:
    """Byte for byte the same in one process and in two."""
    arguments = [*SHORT, "--policy", ",".join(sorted(PLACEMENTS)[:2]), "--seed", "1,2", "--gateways", "2"]
    here, there = (simulate(*arguments, "--jobs", jobs) for jobs in ("1", "2"))
    assert json.dumps(decided(here)) == json.dumps(decided(there))


def test_the_console_script_writes_one_array_and_a_table(tmp_path: Path) -> None:
    """With `--json FILE` the table goes to standard output; with `-` to standard error."""
    out = tmp_path / "rows.json"
    command = [*CLI, "simulate", *SHORT, "--policy", "least-requests", "--json"]
    done = subprocess.run([*command, str(out)], capture_output=True, text=True, timeout=60, check=True)
    jsonschema.validate(json.loads(out.read_text()), ARRAY)
    assert "least-requests" in done.stdout
    done = subprocess.run([*command, "-"], capture_output=True, text=True, timeout=60, check=True)
    jsonschema.validate(json.loads(done.stdout), ARRAY)
    assert "least-requests" in done.stderr


def test_load_is_a_share_of_a_capacity_that_is_measured_once(cache: Path) -> None:
    """Twice the load is twice the rate; the second run takes the capacity from the cache; other fleets have others."""
    arguments = ["simulate", *SHORT, "--policy", "round-robin", "--slo", "ttft=2", "--json", "-"]
    first = CliRunner().invoke(app, [*arguments, "--load", "0.4"])
    second = CliRunner().invoke(app, [*arguments, "--load", "0.8"])
    assert "capacity of least-requests/least-requests" in first.stderr
    assert "P99 TTFT within 2 s" in first.stderr
    assert "probes)" in first.stderr
    assert f"cached in {cache}" in second.stderr
    (low,), (high,) = json.loads(first.stdout), json.loads(second.stdout)
    assert (low["load"], high["load"]) == (0.4, 0.8)
    assert high["rate_rps"] == pytest.approx(2 * low["rate_rps"])
    assert len(list(cache.iterdir())) == 1
    CliRunner().invoke(app, [*arguments, "--load", "0.4", "--endpoints", "3P2D"])
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_cache_file_is_measured_anew(cache: Path) -> None:
    """It costs the measurement, nothing else."""
    arguments = [*SHORT, "--policy", "round-robin", "--load", "0.5"]
    whole = simulate(*arguments)
    (path,) = cache.iterdir()
    path.write_text("{")
    assert decided(simulate(*arguments)) == decided(whole)
    assert json.loads(path.read_text())["capacity"]["rate_scale"] > 0


class _References(HTMLParser):
    """Everything in a page that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "data", "srcset")]


def test_the_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    """No script, no reference, no address in its style; a chart for everything; names are escaped."""
    manifest = tmp_path / "policy.yaml"
    manifest.write_text(
        "apiVersion: serving.ballast.dev/v1alpha1\nkind: SchedulingPolicy\nmetadata: {name: mine}\n"
        "spec: {prefill: {type: round-robin}, decode: {type: least-requests}}\n"
    )
    page = tmp_path / "report.html"
    rows = simulate(
        *SHORT, "--policy", "least-requests", "--policy-file", str(manifest), "--html", str(page), "--slo", "ttft=1"
    )
    assert [row["policy"] for row in rows] == ["least-requests", "mine"]
    text = page.read_text()
    parser = _References()
    parser.feed(text)
    assert parser.found == []
    assert not parser.tags & {"script", "link", "iframe", "img", "object"}
    assert not re.search(r"url\(|@import|https?:", text)
    assert text.count("<svg") == 1 + 3 + 2 * 2
    assert "prefers-color-scheme: dark" in text
    assert "<b>" not in text
    assert "mine" in text


COMPOSED = """
apiVersion: serving.ballast.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: lmetric-by-hand}
spec:
  prefill: {type: least-uncached-tokens}
  decode:
    type: product
    parameters:
      parts:
        - {type: least-tokens, offset: 1000}
        - type: weighted-sum
          offset: 1
          parameters: {normalise: largest, parts: [{type: least-requests, weight: 2}, {type: ils}]}
"""


def test_a_policy_file_takes_compositions(tmp_path: Path) -> None:
    """As a manifest has them; what is wrong inside is named with its path."""
    manifest = tmp_path / "composed.yaml"
    manifest.write_text(COMPOSED)
    (row,) = simulate(*SHORT, "--policy-file", str(manifest))
    assert row["policy"] == "lmetric-by-hand"
    assert row["placements"] == "least-uncached-tokens/product"
    assert row["completed"] == row["requests"]
    manifest.write_text(COMPOSED.replace("weight: 2", "weigth: 2"))
    answer = CliRunner().invoke(app, ["simulate", *SHORT, "--policy-file", str(manifest)])
    assert answer.exit_code == 2
    assert "spec.decode.parameters.parts[1].parameters.parts[0].weigth: is not a field here" in answer.output


ALL_PARTS = Path(__file__).resolve().parents[2] / "manifests" / "policies" / "all-parts.yaml"
FLEXIBLE = ("--workload", "chat", "--limit", "30", "--endpoints", "4F@h20-qwen3-32b")


def test_a_policy_file_takes_all_parts_and_options_replace_them() -> None:
    """The same requests are served; the JSON names each policy."""
    (row,) = simulate(*FLEXIBLE, "--policy-file", str(ALL_PARTS))
    assert row["policies"] == {
        "prefill": "least-uncached-tokens",
        "decode": "ballast",
        "queue": "uniboost",
        "admission": "bounded",
        "partition": "libra",
        "rescheduling": "ares",
    }
    assert row["completed"] == 30
    parts = ("--queue", "sjf:unknown_output_tokens=64", "--partition", "none", "--rescheduling", "none")
    (row,) = simulate(*FLEXIBLE, "--policy-file", str(ALL_PARTS), *parts)
    kept = {"prefill": "least-uncached-tokens", "decode": "ballast", "admission": "bounded"}
    assert row["policies"] == {**kept, "queue": "sjf"}
    assert row["completed"] == 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--queue", "lifo"), "--queue: unknown queue order 'lifo'; known: edf, fcfs"),
        (("--admission", "bounded:places=3"), "--admission: bounded has no parameter 'places'; it takes "),
        (("--admission", "bounded:max_wait_s"), "--admission: cannot read 'max_wait_s' in"),
        (("--queue", "sjf"), "policy ballast: queue orders nothing: without an admission that bounds"),
        (
            ("--queue", "sjf:engine_priority=true"),
            "policy ballast: queue passes its order to the engines, which ignore it",
        ),
        (("--partition", "fixed", "--endpoints", "2P2D@h20-qwen3-32b"), "policy ballast: partition cuts nothing"),
    ],
)
def test_parts_that_make_no_sense_are_refused_with_the_reason(options: tuple[str, ...], words: str) -> None:
    """Before anything runs."""
    answer = CliRunner().invoke(app, ["simulate", *FLEXIBLE, "--policy", "ballast", *options])
    assert answer.exit_code == 2
    assert words in " ".join(answer.output.split())


def test_a_part_without_effect_is_worth_a_note() -> None:
    """It runs all the same."""
    command = ["simulate", "--workload", "chat", "--limit", "10", "--endpoints", "1F@h20-qwen3-32b"]
    answer = CliRunner().invoke(app, [*command, "--policy", "ballast", "--partition", "fixed"])
    assert answer.exit_code == 0
    assert "partition cuts nothing while there is only one flexible endpoint" in " ".join(answer.output.split())


BAD = {
    "no workload": ([*FLEET, "--policy", "round-robin"], "--trace, --workload: give one of them"),
    "two workloads": ([*SHORT, "--trace", "x.csv", "--policy", "round-robin"], "--trace, --workload: give one"),
    "unknown workload": (["--workload", "chatt", *FLEET, "--policy", "round-robin"], "did you mean chat?"),
    "unknown profile": (
        ["--workload", "chat", "--endpoints", "1P1D@tpu", "--policy", "round-robin"],
        "unknown profile",
    ),
    "no endpoints": (
        ["--workload", "chat", "--endpoints", "0P1D@a100-qwen3-32b", "--policy", "round-robin"],
        "0 endpoi",
    ),
    "mixed colocated": (["--workload", "chat", "--endpoints", "1C1D@a100-qwen3-32b", "--policy", "round-robin"], "(C)"),
    "unknown policy": ([*SHORT, "--policy", "round-robbin"], "--policy: unknown placement 'round-robbin'; did you"),
    "half a policy": ([*SHORT, "--policy", "/round-robin"], "--policy: cannot read '/round-robin'"),
    "a policy twice": ([*SHORT, "--policy", "round-robin,round-robin"], "'round-robin' is named twice"),
    "a composition": (
        [*SHORT, "--policy", "ils,product"],
        "--policy: product is made of other policies; write them into",
    ),
    "no policy file": ([*SHORT, "--policy-file", "/nowhere.yaml"], "--policy-file: /nowhere.yaml: cannot be read"),
    "both rates": (
        [*SHORT, "--policy", "round-robin", "--load", "1", "--rate-scale", "1"],
        "--load, --rate-scale: both",
    ),
    "no load": ([*SHORT, "--policy", "round-robin", "--load", "0"], "--load: must be above 0"),
    "no rate": ([*SHORT, "--policy", "round-robin", "--rate-scale", "-1"], "--rate-scale: must be above 0"),
    "endless rate": ([*SHORT, "--policy", "round-robin", "--rate", "inf"], "--rate: must be above 0 and finite"),
    "unknown arrivals": ([*SHORT, "--policy", "round-robin", "--arrivals", "tidal"], "--arrivals: there is no 'tidal'"),
    "no time": ([*SHORT, "--policy", "round-robin", "--duration", "0"], "--duration: must be above 0"),
    "no requests": ([*SHORT, "--policy", "round-robin", "--limit", "0"], "--limit: must be 1 request or more"),
    "bad seed": ([*SHORT, "--policy", "round-robin", "--seed", "1,x"], "--seed: 'x' in '1,x'"),
    "seed twice": ([*SHORT, "--policy", "round-robin", "--seed", "1,1"], "--seed: '1,1' names a seed twice"),
    "bad binding": ([*SHORT, "--policy", "round-robin", "--binding", "soon"], "--binding: must be early, late or both"),
    "bad slo": ([*SHORT, "--policy", "round-robin", "--slo", "ttft=now"], "--slo: cannot read 'ttft=now'"),
    "bad limit": (
        [*SHORT, "--policy", "round-robin", "--max-tokens", "0"],
        "--max-tokens: must be trace, none",
    ),
    "no gateway": ([*SHORT, "--policy", "round-robin", "--gateways", "0"], "--gateways: must be 1 or more"),
    "all lost twice": ([*SHORT, "--policy", "round-robin", "--scrape-loss", "2"], "--scrape-loss: must lie in 0..1"),
    "no processes": ([*SHORT, "--policy", "round-robin", "--jobs", "0"], "--jobs: must be 1 or more"),
    "no sessions": ([*SHORT, "--policy", "round-robin", "--closed-loop"], "--closed-loop: chat has no sessions"),
    "no folder": ([*SHORT, "--policy", "round-robin", "--html", "/nowhere/r.html"], "its folder does not exist"),
    "impossible slo": ([*SHORT, "--policy", "round-robin", "--load", "1", "--slo", "ttft=0.001"], "ease --slo"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_input_that_cannot_work_is_refused(arguments: list[str], message: str) -> None:
    """Status 2, the option and the reason on standard error, nothing on standard output."""
    result = CliRunner().invoke(app, ["simulate", *arguments, "--json", "-"])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


def test_a_broken_trace_is_refused_with_file_line_and_column(tmp_path: Path) -> None:
    """Also when the gzip file ends too early."""
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,-3,5\n")
    result = CliRunner().invoke(app, ["simulate", "--trace", str(trace), *FLEET, "--policy", "round-robin"])
    assert (result.exit_code, result.stderr.split(": ")[:4]) == (
        2,
        ["error", str(trace), "line 3", "column input_tokens"],
    )
    half = tmp_path / "half.csv.gz"
    half.write_bytes(gzip.compress(b"arrival_s,input_tokens,output_tokens\n" + b"0,5,1\n" * 999)[:-20])
    result = CliRunner().invoke(app, ["simulate", "--trace", str(half), *FLEET, "--policy", "round-robin"])
    assert f"{half}: the gzip file is cut short" in result.stderr


def test_a_request_larger_than_a_kv_cache_is_refused_with_its_place(tmp_path: Path) -> None:
    """Before anything runs, naming file, row and profile."""
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,300000,5\n")
    result = CliRunner().invoke(app, ["simulate", "--trace", str(trace), *FLEET, "--policy", "round-robin"])
    assert result.exit_code == 2
    assert f"error: {trace}: line 3: a request of 300000 input and 5 output tokens does not fit" in result.stderr
    assert "a100-qwen3-32b" in result.stderr


def test_a_batch_of_yours_arrives_at_once_and_mooncakes_is_spread_with_a_remark(tmp_path: Path) -> None:
    """Of Mooncake's stamps a row in the file tells, whose own instant nobody knows."""
    yours, theirs = tmp_path / "batch.csv", tmp_path / "mooncake.jsonl"
    yours.write_text("arrival_s,input_tokens,output_tokens\n" + "0,100,5\n" * 8)
    row = '{{"timestamp": {}, "input_length": 100, "output_length": 5, "hash_ids": [0]}}\n'
    theirs.write_text(row.format(0) * 4 + row.format(3000) * 4)
    batch, traced = (
        CliRunner().invoke(app, ["simulate", "--trace", str(file), *FLEET, "--policy", "ils", "--json", "-"])
        for file in (yours, theirs)
    )
    assert json.loads(batch.stdout)[0]["rate_rps"] is None
    assert "stamps" not in batch.stderr
    assert json.loads(traced.stdout)[0]["rate_rps"] != 7 / 3
    assert "mooncake.jsonl: requests that share one of Mooncake's stamps arrive spread over its 3 s" in traced.stderr


LONG = ["--workload", "chat", "--rate", "6", "--duration", "5000", *FLEET, "--policy", "least-requests,round-robin"]
"""Some 30 s of processor time each; the rate is given, so that no capacity is searched for first."""
HAS_PROC = Path("/proc/self/task").is_dir()


def children_of(pid: int) -> list[str]:
    """Its child processes."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def cpu_s(pid: str) -> float:
    """Processor time that a process has had: how far it is, also on a busy machine."""
    fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_at_work(process: subprocess.Popen[str], jobs: int) -> None:
    """Until as many processes as asked for have had 5 s of processor time: they simulate by then."""
    until_s = time.monotonic() + 90
    while time.monotonic() < until_s:
        pids = [str(process.pid)] if jobs == 1 else children_of(process.pid)
        if sum(cpu_s(pid) > 5 for pid in pids) >= jobs:
            return
        time.sleep(0.2)


@pytest.mark.rotating(4)
@pytest.mark.timeout(300)  # it waits for processor time, which a busy machine gives late
@pytest.mark.skipif(not HAS_PROC, reason="needs /proc to see that the processes are at work")
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_still_reports_what_there_is(jobs: int) -> None:
    """Status 130; a whole array; runs that were under way say so and count what had arrived."""
    command = [*CLI, "simulate", *LONG, "--json", "-", "--jobs", str(jobs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until_at_work(process, jobs)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    rows = json.loads(stdout)
    jsonschema.validate(rows, ARRAY)
    assert len(rows) == jobs
    assert all(row["interrupted"] and row["completed"] <= row["requests"] < 25_000 for row in rows)


def alive(pid: str) -> bool:
    """Whether a process runs; one that ended and was not reaped does not."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.timeout(300)  # it waits for processor time, which a busy machine gives late
@pytest.mark.skipif(not HAS_PROC, reason="needs /proc to find the worker processes")
def test_workers_end_with_a_parent_that_is_killed() -> None:
    """No process is left behind, whatever ends the command."""
    with subprocess.Popen([*CLI, "simulate", *LONG, "--jobs", "2"], stderr=subprocess.DEVNULL, text=True) as process:
        wait_until_at_work(process, 2)
        workers = children_of(process.pid)
        process.kill()
    assert len(workers) >= 2
    until_s = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert [worker for worker in workers if alive(worker)] == []


def test_both_bindings_are_reported() -> None:
    """Early assignment and late binding, a row each."""
    rows = simulate(*SHORT, "--policy", "least-requests", "--binding", "both")
    assert [row["binding"] for row in rows] == ["early", "late"]


@pytest.mark.parametrize("shape", ["2C", "2F", "1P1D1F"])
def test_colocated_and_flexible_fleets_run(shape: str) -> None:
    """Every request completes."""
    (row,) = simulate(
        "--workload", "chat", "--limit", "30", "--endpoints", shape, "--profile", "a100-qwen3-32b",
        "--policy", "least-requests",
    )  # fmt: skip
    assert row["completed"] == 30


@pytest.mark.parametrize("command", ["workloads", "policies", "profiles"])
def test_listings_explain_each_entry_in_a_line(command: str) -> None:
    """As text, a line each, policies under their kind; as JSON, the same names."""
    said = CliRunner().invoke(app, [command]).stdout.splitlines()
    lines = [line for line in said if not line.endswith(":")]
    rows = json.loads(CliRunner().invoke(app, [command, "--json"]).stdout)
    assert [line.split()[0] for line in lines] == [row["name"] for row in rows]
    assert all(len(line.split()) > 3 for line in lines)
    if command == "policies":
        by_kind = {kind: {row["name"] for row in rows if row["kind"] == kind} for kind in (row["kind"] for row in rows)}
        assert by_kind.pop("placement") == {*ALL_PLACEMENTS, "oracle"}
        assert by_kind == {kind.name: set(kind.types) for kind in (*PARTS.values(), SCALING) if kind is not PLACEMENT}
        assert [line.removesuffix(":").lower() for line in said if line not in lines] == ["placement", *by_kind]


@pytest.mark.shared
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no public traces at {os.path.relpath(TRACES)}")
@pytest.mark.parametrize(
    "name", sorted(path.name for path in TRACES.glob("*.gz")) if TRACES.is_dir() else ["agent_miniswe.jsonl.gz"]
)
def test_every_public_trace_runs(name: str) -> None:
    """200 requests each, all of them completed."""
    (row,) = simulate(
        "--trace", str(TRACES / name), "--limit", "200", "--endpoints", "4P@a100-qwen3-32b,4D@h20-qwen3-32b",
        "--policy", "least-requests",
    )  # fmt: skip
    assert row["requests"] == row["completed"] == 200


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_script_of_failures_counts_what_broke_and_what_was_tried_again(tmp_path: Path) -> None:
    """Every request is in one of the three counts of ends."""
    script = tmp_path / "script.yaml"
    script.write_text("- {at_s: 10, endpoint: d000, kind: crash, down_s: 5}\n")
    report = tmp_path / "report.html"
    options = ["--policy", "least-requests", "--rate", "20", "--failures", str(script), "--html", str(report)]
    result = CliRunner().invoke(
        app, ["simulate", "--workload", "chat", "--limit", "400", *FLEET, *options, "--json", "-"]
    )
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert "crash of d000 at 10 to 15 s" in report.read_text()
    assert f"<td>{row['broken']}</td><td>{row['retried']}</td></tr>" in report.read_text()
    assert row["completed"] + row["rejected"] + row["broken"] == row["requests"] == 400
    assert row["broken"] > 0
    assert row["retried"] > 0


def test_a_bad_script_is_refused_with_file_entry_field_and_reason(tmp_path: Path) -> None:
    """Before anything runs."""
    script = tmp_path / "script.yaml"
    script.write_text("- {at_s: 10, endpoint: d009, kind: crash, down_s: 5}\n")
    result = CliRunner().invoke(app, ["simulate", *SHORT, "--policy", "ils", "--failures", str(script)])
    assert result.exit_code == 2
    assert f"--failures: {script}: entry 1: endpoint: unknown endpoint 'd009'" in result.output.replace("\n", "")


# --- physics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("physics", ["vllm", "sibyl-printed", "sibyl-held", "ares-linear"])
def test_rows_say_which_physics_the_engines_obeyed(physics: str) -> None:
    """Each serves the same requests to the end."""
    (row,) = simulate(*SHORT, "--policy", "sibyl", "--physics", physics)
    assert (row["physics"], row["completed"], row["broken"], row["retried"]) == (physics, 60, 0, 0)


def test_times_between_tokens_are_not_told_where_engines_do_not_time_tokens() -> None:
    """What was shown were the pauses of moved requests."""
    moving = ("--policy", "ballast", "--rescheduling", "ares", "--physics", "sibyl-printed")
    many = ("--workload", "sharegpt-reasoning", "--rate", "1.5", "--limit", "60")
    (row,) = simulate(*many, "--endpoints", "1P3D@a100", *moving)
    assert row["migrations"] > 0
    assert set(row["tbt_s"].values()) == {None}
    result = CliRunner().invoke(app, ["simulate", *SHORT, *moving, "--slo", "tbt=0.001"])
    assert result.exit_code == 2
    assert "--slo, --physics: physics sibyl-printed does not time single tokens" in result.output.replace("\n", " ")


def test_an_unknown_physics_is_refused() -> None:
    """With what exists."""
    result = CliRunner().invoke(app, ["simulate", *SHORT, "--policy", "sibyl", "--physics", "sibyl"])
    assert result.exit_code == 2
    assert "--physics: unknown physics 'sibyl'; known: ares-linear" in result.output.replace("\n", " ")


def test_many_rows_fit_80_columns_and_none_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, too; without --policy three are compared."""
    names = "round-robin,least-requests,least-tokens,ils,sibyl,ballast,lmetric/least-requests"
    for asked, wanted in (
        ([], "round-robin/round-robin,least-requests/least-requests,ballast"),
        (["--policy", names], names),
    ):
        done = CliRunner().invoke(app, ["simulate", *SHORT, *asked, "--limit", "5", "--jobs", "1"])
        assert done.exit_code == 0, done.output
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= 80
        heads = [name for line in lines if line.startswith("policy ") for name in line.split()[1:]]
        assert heads == wanted.split(",")
