"""`ballast recommend` as a user runs it: manifests that load, figures that `simulate` prints again, refusals."""

import functools
import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from ballast_api.loading import load_manifest, load_manifest_files
from ballast_api.serving_pool import ServingPool
from ballast_cli.main import app

pytestmark = pytest.mark.rotating(4, each=True)

QUICKSTART = Path(__file__).parents[2] / "manifests/quickstart"
SMALL = ["--workload", "chat", "--limit", "80", "--budget", "a100=4,h20=2", "--seed", "0", "--jobs", "1"]


def recommend(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["recommend", *arguments])


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of a folder's files."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_answer_loads_and_simulate_prints_its_figures_again(tmp_path: Path) -> None:
    manifests, figures, again = tmp_path / "answer.yaml", tmp_path / "answer.json", tmp_path / "again.json"
    result = recommend(*SMALL, "--slo", "ttft=3,tpot=0.1", "--output", str(manifests), "--json", str(figures))
    assert result.exit_code == 0, result.output
    pools = [item for item in load_manifest_files(manifests) if isinstance(item, ServingPool)]
    assert len(pools) == 1
    found: dict[str, Any] = json.loads(figures.read_text())
    head = [line for line in manifests.read_text().splitlines() if line.startswith("# Again: ")]
    command = shlex.split(head[0].removeprefix("# Again: "))
    repeated = CliRunner().invoke(app, [*command[1:], "--json", str(again), "--jobs", "1"])
    assert repeated.exit_code == 0, repeated.output
    (row,) = json.loads(again.read_text())
    best = found["candidates"][0]["runs"][0]
    for figure in ("requests", "attainment", "ttft_s", "tpot_s", "goodput_rps", "shape"):
        assert row[figure] == best[figure]


def test_the_command_asks_for_the_same_traffic_to_the_last_digit(tmp_path: Path) -> None:
    """A limit of a million is no float, and a factor or a threshold is not rounded."""
    trace, again = tmp_path / "trace.csv", tmp_path / "again.json"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{n},300,20\n" for n in range(30)))
    out = str(tmp_path / "answer.yaml")
    result = recommend(
        "--trace", str(trace), "--limit", "1000000", "--max-tokens", "2000000", "--rate-scale", "1.23456789",
        "--slo", "ttft=2.00000001,tpot=0.05", "--budget", "h20=2", "--seed", "0", "--jobs", "1", "--output", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (told,) = [line for line in result.stderr.splitlines() if line.startswith("Again: ")]
    words = shlex.split(told.removeprefix("Again: ballast "))
    assert dict(zip(words[1::2], words[2::2], strict=True)) | {"--endpoints": ""} == {
        "--trace": str(trace), "--endpoints": "", "--policy-file": out, "--slo": "ttft=2.00000001,tpot=0.05",
        "--limit": "1000000", "--max-tokens": "2000000", "--rate-scale": "1.23456789", "--seed": "0",
    }  # fmt: skip
    repeated = CliRunner().invoke(app, [*words, "--json", str(again), "--jobs", "1"])
    assert repeated.exit_code == 0, repeated.output
    (row,) = json.loads(again.read_text())
    assert row["rate_rps"] == pytest.approx(1.23456789, rel=1e-12)


def test_the_traffic_of_a_gateway_is_fetched_by_its_url(tmp_path: Path) -> None:
    (tmp_path / "traffic").write_text("arrival_s,input_tokens,output_tokens\n0,300,20\n1,300,20\n")
    with served(tmp_path) as address:
        url = f"{address}/traffic?minutes=10"
        result = recommend("--trace", url, "--budget", "h20=2", "--seed", "0", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert f"--trace '{url}' " in result.stderr


def test_what_was_dropped_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After which length, and what it attained there; nothing is dropped with --full-length."""
    monkeypatch.setattr("ballast_sim.recommend.stretch.LEAST", 40)
    figures = tmp_path / "answer.json"
    asked = ("--workload", "chat", "--rate", "2", "--limit", "100", "--budget", "a100=2,h20=3")
    quick = ("--seed", "0", "--jobs", "1", "--slo", "ttft=3,tpot=0.1", "--json", str(figures))
    result = recommend(*asked, *quick)
    assert result.exit_code in (0, 1), result.output
    found: dict[str, Any] = json.loads(figures.read_text())
    lines = [line for line in result.stderr.splitlines() if line.startswith("dropped ")]
    assert any(line.startswith("dropped after the busiest 40 of 100 requests, ") for line in lines)
    for each in found["dropped"]:
        assert any(f"{each['endpoints']} with {each['policy']}" in line and each["why"] in line for line in lines)
        assert "runs" not in each or each["runs"][0]["requests"] == 40
    assert all(run["requests"] == 100 for each in found["candidates"] for run in each["runs"])
    simulated = found["simulated"]
    assert f"simulated: {simulated['runs']} runs, {simulated['requests']:,} requests" in result.stderr
    whole = recommend(*asked, *quick, "--full-length")
    assert "dropped after" not in whole.stderr
    again = json.loads(figures.read_text())
    assert len(again["candidates"]) > len(found["candidates"])
    for each in again["candidates"][:12]:  # a row is a line on a terminal of 80 columns
        shown = f"{each['endpoints'].replace('-qwen3-32b', '')} +{each['policy']}[*]? +{each['attainment']:.1%}"
        assert re.search(rf"(?m)^{shown}", whole.stderr), whole.stderr
    assert again["simulated"]["requests"] > simulated["requests"]


def test_profiles_of_your_own_keep_their_nodes_and_are_in_the_command(tmp_path: Path) -> None:
    """Shipped profiles get the quickstart's label, so that engines do not land on each other's nodes."""
    own, out, again = tmp_path / "own.yaml", tmp_path / "answer.yaml", tmp_path / "again.json"
    (shipped,) = [
        item
        for item in yaml.safe_load_all((QUICKSTART / "hardware-profiles.yaml").read_text())
        if item["metadata"]["name"] == "h20-qwen3-32b"
    ]
    shipped["metadata"]["name"] = "our-card"
    shipped["spec"]["nodeSelector"] = {"rack": "seven"}
    own.write_text(yaml.safe_dump(shipped))
    asked = ("--workload", "chat", "--limit", "40", "--seed", "0", "--jobs", "1", "--slo", "ttft=3,tpot=0.1")
    result = recommend(*asked, "--profiles", str(own), "--budget", "our-card=1,a100=2", "--output", str(out))
    assert result.exit_code in (0, 1), result.output
    (told,) = [line for line in out.read_text().splitlines() if line.startswith("# Again: ")]
    repeated = CliRunner().invoke(app, [*shlex.split(told)[3:], "--json", str(again), "--jobs", "1"])
    assert repeated.exit_code == 0, repeated.output
    nodes = {
        item["metadata"]["name"]: item["spec"]["nodeSelector"]
        for item in yaml.safe_load_all(out.read_text())
        if item["kind"] == "HardwareProfile"
    }
    assert nodes == {"our-card": {"rack": "seven"}, "a100-qwen3-32b": {"serving.ballast.dev/hardware": "a100"}}


def test_the_answer_for_engine_sims_is_the_same_fleet_without_a_model() -> None:
    """Engines run as in the quickstart, with the image that was named; nothing else of the answer differs."""
    asked = (*SMALL, "--slo", "ttft=3,tpot=0.1")
    answers = [recommend(*asked), recommend(*asked, "--engine-sim", "localhost/ballast:dev")]
    assert ["engine-sims" in answer.stderr for answer in answers] == [False, True]
    assert all("&id" not in answer.stdout for answer in answers)  # people read and edit them
    real, simulated = ([*yaml.safe_load_all(answer.stdout)] for answer in answers)
    shown = [*yaml.safe_load_all((QUICKSTART / "servingpool.yaml").read_text())][-1]["spec"]
    assert load_manifest(answers[1].stdout)
    for pool in simulated[-1]["spec"]["pools"]:
        assert pool.pop("template") == shown["pools"][0]["template"]
    assert simulated[-1]["spec"].pop("engine") == shown["engine"]
    assert real[-1]["spec"].pop("engine")["image"] == "vllm/vllm-openai:v0.32.0"
    assert simulated == real


def test_what_is_not_said_is_assumed_and_listed() -> None:
    result = recommend("--limit", "40", "--budget", "h20=2", "--seed", "0", "--jobs", "1")
    assert result.exit_code in (0, 1), result.output
    for assumed in ("built-in workload chat", "ttft=2,tpot=0.05", "no max_tokens"):
        assert assumed in result.output
    assert "a budget of" not in result.output  # that was said


def test_a_fleet_that_is_too_small_is_answered_with_the_best_there_is_and_status_1(tmp_path: Path) -> None:
    """More traffic than it cannot carry is not tried."""
    out, figures = tmp_path / "answer.yaml", tmp_path / "answer.json"
    asked = ("--rate", "60", "--slo", "ttft=0.2,tpot=0.02", "--output", str(out), "--json", str(figures))
    result = recommend(*SMALL, *asked)
    assert result.exit_code == 1, result.output
    assert "nothing that was tried meets 99.0%" in result.output
    assert "headroom" not in result.output
    assert json.loads(figures.read_text())["headroom"] == []
    assert [item["kind"] for item in yaml.safe_load_all(out.read_text())][-1] == "ServingPool"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "b200=8"], ("--budget", "b200")),
        (["--slo", "ttft=x"], ("slo", "ttft=2,tpot=0.05")),
        (["--slo", ""], ("--slo", "ttft=2,tpot=0.05")),
        (["--slo", "tbt=0.1"], ("--slo", "tbt", "ttft, tpot and e2e")),
        (["--attainment", "1.5"], ("--attainment",)),
        (["--workload", "nothing"], ("--workload", "`ballast workloads`")),
        (["--workload", "chat", "--trace", "x.csv"], ("--trace, --workload",)),
        (["--trace", "missing.csv"], ("missing.csv",)),
        (["--name", "Not A Name"], ("--name",)),
        (["--jobs", "0"], ("--jobs",)),
        (["--output", "/no/such/folder/x.yaml"], ("--output",)),
        (["--json", "-"], ("--output, --json", "standard output takes one of them; name a file for the other")),
        (["--model", "gpt-9"], ("gpt-9", "--model")),
        (["--seed", "a"], ("--seed",)),
        (["--limit", "0"], ("--limit",)),
        (["--rate-scale", "0"], ("--rate-scale",)),
        (["--engine-sim", "a b"], ("--engine-sim", "localhost/ballast:dev")),
        (["--image", ""], ("--image", "localhost/ballast:dev")),
        (["--image", "vllm", "--engine-sim", "ballast"], ("--image, --engine-sim", "give one of them")),
    ],
)
def test_input_that_cannot_work_names_option_and_fix(arguments: list[str], words: tuple[str, ...]) -> None:
    result = recommend(*arguments)
    assert result.exit_code == 2, result.output
    assert all(word in result.output for word in words), result.output
    assert "Traceback" not in result.output


def test_a_time_that_no_request_has_is_a_dash(tmp_path: Path) -> None:
    """One token has no time between tokens."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,1\n1,100,1\n2,50,1\n")
    result = recommend("--trace", str(trace), "--budget", "h20=2", "--seed", "0", "--jobs", "1")
    assert "P99 TPOT -\n" in result.stderr
    assert "nan" not in result.output


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("0.667", "66.67% of requests within the SLO (nothing that was tried meets 66.70%)"),
        ("0.6665", "66.67% of requests within the SLO (meets 66.65%)"),
        ("0.5", "66.7% of requests within the SLO (meets 50.0%)"),
    ],
)
def test_shares_are_written_so_that_they_show_which_is_larger(wanted: str, words: str, tmp_path: Path) -> None:
    """One request of three has a prompt that no engine computes in half a second."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n60,100,5\n120,20000,5\n")
    asked = ("--slo", "ttft=0.5", "--budget", "h20=1", "--seed", "0", "--jobs", "1", "--attainment", wanted)
    result = recommend("--trace", str(trace), *asked)
    assert words in result.stderr


def test_the_smallest_fleet_is_answered_with_its_price_and_its_headroom() -> None:
    asked = ["--workload", "chat", "--rate", "2", "--limit", "60", "--seed", "0", "--jobs", "1", "--budget", "h20=4"]
    slo = ["--slo", "ttft=6,tpot=0.2", "--attainment", "0.9"]
    result = recommend(*asked, *slo, "--minimize", "cost", "--price", "h20=4")
    assert result.exit_code == 0, result.output
    assert "cost /h" in result.stderr
    assert "Headroom: 1.1 times " in result.stderr
    assert [item["kind"] for item in yaml.safe_load_all(result.stdout)][-1] == "ServingPool"


def test_a_smallest_fleet_is_asked_for_with_the_requests_that_are_named(tmp_path: Path) -> None:
    """Where none are, more than usual are assumed at a high rate, so that they last two minutes; that is said."""
    slo = ("--slo", "ttft=60,tpot=1", "--attainment", "0.5", "--seed", "0", "--jobs", "1", "--budget", "h20=64")
    figures = tmp_path / "figures.json"
    asked = (*slo, "--minimize", "gpus", "--json", str(figures))
    result = recommend("--workload", "chat", "--rate", "2", "--limit", "60", *asked)
    assert result.exit_code == 0, result.output
    assert "--limit 60" in result.stderr
    assert json.loads(figures.read_text())["candidates"][0]["runs"][0]["requests"] == 60
    lengths = tmp_path / "short.csv"
    lengths.write_text("input_tokens,output_tokens\n10,1\n10,1\n")
    result = recommend("--trace", str(lengths), "--rate", "20", *asked)
    assert result.exit_code == 0, result.output
    requests = json.loads(figures.read_text())["candidates"][0]["runs"][0]["requests"]
    assert 2200 < requests < 2600
    assert f"that the first {requests} requests speak for the rest" in result.stderr


def test_a_price_by_hardware_is_that_of_the_model_that_is_asked_for(tmp_path: Path) -> None:
    """Of a shipped profile, and of one of yours."""
    own = tmp_path / "own.yaml"
    shown = CliRunner().invoke(app, ["profile", "show", "h20-llama3-70b-tp2"]).stdout
    own.write_text(shown.replace("name: h20-llama3-70b-tp2", "name: rack-llama3-70b-tp2"))
    asked = [
        "--workload",
        "chat",
        "--limit",
        "40",
        "--rate",
        "1",
        "--seed",
        "0",
        "--jobs",
        "1",
        "--slo",
        "ttft=9,tpot=0.5",
    ]
    fleet = ["--model", "llama3-70b", "--budget", "h20=8,rack=8", "--profiles", str(own)]
    result = recommend(*asked, *fleet, "--minimize", "cost", "--price", "h20=4,rack=3")
    assert result.exit_code == 0, result.output
    assert "rack-llama3-70b-tp2" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--minimize", "money"], ("--minimize", "gpus or cost")),
        (["--minimize", "cost"], ("--price", "a100-qwen3-32b=4.2")),
        (["--price", "h20=1"], ("--price, --minimize",)),
        (["--minimize", "cost", "--price", "a100=2,h20=1,b200=9"], ("--price", "'b200'", "a100-qwen3-32b")),
        (["--growth", "0"], ("--growth", "above 0")),
        (["--attainment", "99"], ("--attainment", "write 0.99 for 99 %")),
    ],
)
def test_a_smallest_fleet_that_cannot_be_asked_for_names_the_option(
    arguments: list[str], words: tuple[str, ...]
) -> None:
    result = recommend(*SMALL, *arguments)
    assert result.exit_code == 2
    for word in words:
        assert word in result.output
