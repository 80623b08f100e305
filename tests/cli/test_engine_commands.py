"""`ballast engine-sim`, `ballast load` and `ballast validate` as processes and as a user types them."""

import gzip
import json
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ballast_cli.main import app
from tests.support.served_engine import CLI, serving

pytestmark = pytest.mark.rotating(4, each=True)


def test_load_replays_against_a_served_engine_and_sigterm_ends_it(tmp_path: Path) -> None:
    """All requests complete; the report goes to a file; the server leaves with status 0."""
    report = tmp_path / "report.json"
    with serving("--profile", "h200-llama3-8b", "--some-unknown-flag", "5") as (process, url):
        arguments = ["--url", url, "--model", "m", "--duration", "2", "--slo", "ttft=2,tpot=0.05"]
        done = subprocess.run(
            [*CLI, "load", *arguments, "--json", str(report)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "warning: --some-unknown-flag changes nothing here" in errors
    assert "Traceback" not in errors
    value = json.loads(report.read_text())
    assert value["requests"] == value["completed"] > 3
    assert value["failures"] == []
    assert {"p50", "p90", "p99", "mean"} <= value["ttft_s"].keys()


def test_help_and_page_name_the_same_options_of_its_own() -> None:
    """Those that vLLM does not have."""
    page = (Path(__file__).parents[2] / "docs/engine-sim.md").read_text()
    rows = re.findall(r"(?m)^\| (`--.*?) \|", page[page.index("| its own |") :])
    shown = CliRunner().invoke(app, ["engine-sim", "serve", "--help"], env={"COLUMNS": "200"}).stdout
    ours = shown[shown.index("Its own:") : shown.index("Arguments")]
    assert set(re.findall(r"--[a-z-]+", ours)) == {
        option for row in rows for option in re.findall(r"`(--[a-z-]+)", row)
    }


def test_a_port_that_is_taken_is_an_error_not_a_traceback() -> None:
    """It names the option and the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*CLI, "engine-sim", "serve", "m", "--host", "127.0.0.1", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"error: --port: cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engine-sim", "serve", "m", "--profile", "tpu"], "--profile: there is no profile 'tpu'"),
        (["load", "--url", "ftp://x", "--model", "m"], "url: 'ftp://x'"),
        (["load", "--url", "http://x", "--model", "m", "--workload", "tea"], "--workload: unknown workload 'tea'"),
        (["load", "--url", "http://x", "--model", "m", "--slo", "ttft=never"], "slo: cannot read"),
        (["load", "--url", "http://x", "--model", "m", "--prompts", "songs"], "prompts: must be ids or text"),
        (["load", "--url", "http://x", "--model", "m", "--trace", "/nowhere.csv"], "/nowhere.csv: cannot be read"),
        (["validate", "/nowhere.jsonl"], "/nowhere.jsonl: cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_options_that_cannot_work_are_refused(arguments: list[str], message: str) -> None:
    """Status 2, the option and the reason; no traceback."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output


GOLDEN = {
    "remote_prefill": False, "link": None, "policy": "fcfs", "prefix_caching": True, "async_scheduling": False,
    "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 64, "long_prefill_token_threshold": 0,
    "block_size": 4, "kv_blocks": 101, "watermark": 0.0, "early_stop": False,
    "formula": {
        "overhead_ms": 10.0, "a_ms": 0.0, "d_ms_per_token": 0.0, "k_ms_per_kv_token": 0.0, "s_ms_per_pair": 0.0,
        "b_ms_per_seq": 0.0,
    },
}  # fmt: skip
REQUEST = {
    "id": 0, "t": 0.0, "pull_s": None, "n_in": 8, "n_out": 3, "priority": 0, "hash_block": None, "hash_ids": None,
    "cached": 0, "preempted": 0, "ttft_ms": 10.0, "itl_ms": [10.0, 10.0],
}  # fmt: skip
STEPS = [
    [0.0, 0.0, 10.0, 0, 0, [[8, 0, 0]], 0, 0],
    [0.01, 0.01, 10.0, 1, 8, [], 0, 0],
    [0.02, 0.02, 10.0, 1, 9, [], 0, 0],
]


def golden_file(path: Path, itl_ms: float = 10.0) -> Path:
    """A golden file worked by hand: one request, three steps of 10 ms."""
    rows = [{"summary": GOLDEN}, {"req": {**REQUEST, "itl_ms": [itl_ms, itl_ms]}}, *({"step": step} for step in STEPS)]
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    return path


def test_validate_says_where_the_engine_agrees_and_where_not(tmp_path: Path) -> None:
    """A file that agrees, and one whose tokens came twice as slowly: status 1 unless the tolerance is wide."""
    same = golden_file(tmp_path / "same.jsonl.gz")
    slow = golden_file(tmp_path / "slow.jsonl.gz", itl_ms=20.0)
    result = CliRunner().invoke(app, ["validate", str(same)])
    assert result.exit_code == 0, result.output
    assert "same.jsonl.gz: 1 requests, all 3 steps the same" in result.output
    result = CliRunner().invoke(app, ["validate", str(same), str(slow), "--json", "-"])
    assert result.exit_code == 1
    rows = json.loads(result.output)
    assert [row["file"] for row in rows] == ["same.jsonl.gz", "slow.jsonl.gz"]
    assert rows[0]["steps"] == {"ours": 3, "golden": 3}
    assert rows[0]["first_differing_step"] is None
    assert rows[0]["token_time_error_s"]["max"] < 1e-9
    assert rows[1]["tpot_p99_error_ratio"] == pytest.approx(-0.5)
    assert rows[1]["ttft_p99_error_ratio"] == pytest.approx(0)
    assert CliRunner().invoke(app, ["validate", str(slow), "--tolerance", "0.6"]).exit_code == 0
