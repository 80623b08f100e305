"""`ballast recommend`: which split, which policy, for my traffic on my GPUs?"""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ballast_cli.options.declaring import Sets, in_options, with_options
from ballast_cli.options.running import Jobs, processes
from ballast_cli.options.trace_files import origin
from ballast_cli.options.traffic import Traffic

if TYPE_CHECKING:
    from ballast_sim.recommend.candidates import Candidate
    from ballast_sim.recommend.question import Question
    from ballast_sim.recommend.search import Answer

ASSUMED_BUDGET = "a100=4,h20=8"
ASSUMED_MARKET = "a100=64,h20=64"
ASSUMED_SLO = "ttft=2,tpot=0.05"
ASSUMED_WORKLOAD = "chat"
ASSUMED_REQUESTS = 2000
INTERRUPTED = 130
IMAGE = "vllm/vllm-openai:v0.32.0"
SERVED = {"qwen3-32b": "Qwen/Qwen3-32B", "qwen3-14b": "Qwen/Qwen3-14B", "llama3-8b": "meta-llama/Llama-3.1-8B-Instruct"}
SERVED["llama3-70b"] = "meta-llama/Llama-3.3-70B-Instruct"


@dataclass(frozen=True, kw_only=True)
class SampledTraffic(Traffic):
    """A sample of the traffic to serve."""

    duration: Annotated[float | None, typer.Option(help="Seconds of arrivals to run."), Sets("duration_s")] = None
    limit: Annotated[int | None, typer.Option(help=f"Requests to run at most. Assumed: {ASSUMED_REQUESTS}.")] = None


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the answer is for."""

    budget: Annotated[
        str | None, typer.Option(help=f"GPUs by kind of hardware, or by profile. Assumed: {ASSUMED_BUDGET}.")
    ] = None
    slo: Annotated[str | None, typer.Option(help=f"Thresholds in seconds. Assumed: {ASSUMED_SLO}.")] = None
    attainment: Annotated[float, typer.Option(help="Share of requests that must meet them.")] = 0.99
    model: Annotated[str, typer.Option(help="The model's part of profile names: HARDWARE-MODEL.")] = "qwen3-32b"
    profiles: Annotated[
        list[Path] | None, typer.Option(help="HardwareProfile manifests of your own, for --budget; repeatable.")
    ] = None
    minimize: Annotated[
        str | None,
        typer.Option(
            help="Instead, the smallest fleet that meets the SLO: with the fewest gpus, or of the lowest cost. "
            f"--budget is then the most there may be; assumed: {ASSUMED_MARKET}."
        ),
    ] = None
    price: Annotated[str, typer.Option(help="Cost of an engine and hour: PROFILE=COST,... For --minimize cost.")] = ""
    growth: Annotated[float, typer.Option(help="Multiply the traffic: 1.5 asks for a fleet that has room to grow.")] = (
        1.0
    )
    rate_scale: Annotated[float, typer.Option(help="Multiply the rate of arrivals.")] = 1.0
    seed: Annotated[str, typer.Option(help="Seeds: 0,1. Each candidate runs once for each.")] = "0,1"
    max_tokens: Annotated[int | None, typer.Option(help="The max_tokens that your clients send, if they do.")] = None
    full_length: Annotated[
        bool, typer.Option("--full-length", help="Drop no candidate after a shorter run; two to three times as long.")
    ] = False


@with_options
def recommend_command(
    *,
    traffic: SampledTraffic,
    wishes: Wishes,
    name: Annotated[str, typer.Option(help="Name of the resources.")] = "recommended",
    image: Annotated[
        str | None, typer.Option(help=f"Image of the engine in the ServingPool; {IMAGE} unless given.")
    ] = None,
    engine_sim: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Ballast's own image: engines of the ServingPool run engine-sim, which needs neither model nor GPU.",
        ),
    ] = None,
    output: Annotated[str, typer.Option(help="Where the manifests go: a file, or - for standard output.")] = "-",
    json_out: Annotated[
        str | None,
        typer.Option("--json", help="Write every candidate's figures to a file, or - for stdout (with --output FILE)."),
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Simulate the sensible layouts and policies for this traffic, and answer with manifests that are ready to apply.

    Standard output carries the manifests, with the assumptions at their head; the table goes to standard error. What
    is not given is assumed, and listed.

    Exit status: 0 when the answer meets the SLO, 1 when nothing that was tried does (the manifests are the best of
    it), 2 for input that cannot work, 130 when interrupted.
    """
    from ballast_cli.interrupts import stop_on_interrupt
    from ballast_cli.output import check_outputs, write_output
    from ballast_cli.recommend_view import View
    from ballast_sim.own_profiles import read_node_selectors
    from ballast_sim.recommend.manifests import resources, to_yaml
    from ballast_sim.recommend.runner import Stopped
    from ballast_sim.recommend.search import search
    from ballast_sim.recommend.smallest import minimize
    from ballast_sim.simulation.runs.pool import WorkerDied

    view = View()
    try:
        at_a_time, profiles = processes(jobs), wishes.profiles or []
        check_outputs({"--output": output, "--json": json_out}, [traffic.trace, *profiles])
        _check_name(name)
        engine_image = _image(image, engine_sim)
        question, assumed = _question(traffic, wishes)
        prices = _prices(wishes, question)
        with stop_on_interrupt() as stop:
            try:
                if prices is None:
                    answer = search(question, at_a_time, stop, view.progress)
                else:
                    answer = minimize(question, prices or None, at_a_time, stop, view.progress)
            except Stopped:
                view.note("interrupted: nothing is recommended")
                raise typer.Exit(INTERRUPTED) from None
        view.table(answer, prices)
        heading = [
            *_heading(answer),
            *(f"Assumed: {line}" for line in assumed),
            f"Again: {_command(answer, output, profiles)}",
        ]
        if engine_sim is not None:
            heading.append("Engines are engine-sims: they compute no model and keep the times of these profiles")
        for line in heading:
            view.note(line)
        selectors = read_node_selectors(profiles)
        made = resources(
            answer,
            name=name,
            model=SERVED.get(wishes.model, wishes.model),
            image=engine_image,
            engine_sim=engine_sim is not None,
            selectors=selectors,
        )
        if json_out is not None:
            write_output("--json", json_out, json.dumps(_plain(answer, assumed), indent=1, allow_nan=False) + "\n")
        write_output("--output", output, to_yaml(made, heading))
    except (ValueError, WorkerDied) as error:
        view.note(f"error: {in_options(error, recommend_command)}")
        raise typer.Exit(2) from None
    raise typer.Exit(0 if answer.meets else 1)


def _check_name(name: str) -> None:
    import re

    from ballast_api.common import DNS_LABEL_STARTING_WITH_LETTER
    from ballast_api.names import MAX_SERVING_POOL_NAME
    from ballast_sim.settings import SettingError

    if not re.fullmatch(DNS_LABEL_STARTING_WITH_LETTER, name) or len(name) > MAX_SERVING_POOL_NAME:
        raise SettingError(
            "name",
            "must be lower-case letters, digits and dashes, begin with a letter and have "
            f"{MAX_SERVING_POOL_NAME} characters at most, not {name!r}",
        )


def _image(image: str | None, engine_sim: str | None) -> str:
    """Of the engines. Raises SettingError."""
    from pydantic import TypeAdapter, ValidationError

    from ballast_api.serving_pool import ImageName
    from ballast_sim.settings import SettingError

    if image is not None and engine_sim is not None:
        raise SettingError(("image", "engine_sim"), "both say what engines run; give one of them")
    given = next((each for each in (image, engine_sim) if each is not None), IMAGE)
    try:
        return TypeAdapter(ImageName).validate_python(given)
    except ValidationError:
        setting = "image" if engine_sim is None else "engine_sim"
        raise SettingError(setting, f"must be an image, such as localhost/ballast:dev, not {given!r}") from None


def _question(traffic: SampledTraffic, wishes: Wishes) -> "tuple[Question, list[str]]":
    """The question, and the assumptions in it. Raises SettingError."""
    from ballast_sim.own_profiles import read_profiles
    from ballast_sim.recommend.budget import parse_budget
    from ballast_sim.recommend.question import Question
    from ballast_sim.recommend.smallest import enough
    from ballast_sim.settings import SettingError
    from ballast_sim.simulation.inputs.objective import Objective
    from ballast_sim.simulation.inputs.shapes import parse_shape
    from ballast_sim.simulation.runs.comparison import check_fits, parse_seeds

    assumed: list[str] = []
    budget, slo = wishes.budget, wishes.slo
    if not 0 < wishes.growth < math.inf:
        raise SettingError("growth", f"must be above 0 and finite, not {wishes.growth:g}")
    if traffic.trace is None and traffic.workload is None:
        traffic = replace(traffic, workload=ASSUMED_WORKLOAD)
        assumed.append(
            f"traffic like the built-in workload {ASSUMED_WORKLOAD} at its own rate (--trace, --workload, --rate)"
        )
    if budget is None:
        budget = ASSUMED_BUDGET if wishes.minimize is None else ASSUMED_MARKET
        assumed.append(f"{'a budget of' if wishes.minimize is None else 'at most'} {budget} GPUs (--budget)")
    if slo is None:
        slo = ASSUMED_SLO
        assumed.append(f"an SLO of {slo} seconds (--slo)")
    sampled = traffic.limit is None and traffic.duration is None
    if sampled:
        traffic = replace(traffic, limit=ASSUMED_REQUESTS)
    if wishes.max_tokens is None:
        but = "" if traffic.trace is None else " but those of the trace"
        assumed.append(f"that requests carry no max_tokens{but} (--max-tokens)")
    if not 0 < wishes.attainment <= 1:
        share = f"; write {wishes.attainment / 100:g} for {wishes.attainment:g} %" if wishes.attainment > 1 else ""
        raise SettingError("attainment", f"must be above 0 and 1 at most, not {wishes.attainment:g}{share}")
    objective = Objective.parse(slo)
    if objective == Objective():
        raise SettingError("slo", "names no threshold; write such as ttft=2,tpot=0.05")
    if objective.tbt_s is not None:
        raise SettingError("slo", "tbt: a ServiceLevelObjective has no such threshold; use ttft, tpot and e2e")
    hardware = parse_budget(budget, wishes.model, read_profiles(wishes.profiles or ()))
    for each in hardware:
        if each.gpus % each.profile.gpus:
            spare = each.gpus % each.profile.gpus
            assumed.append(f"that {spare} of {each.gpus} GPUs for {each.profile.name} stay unused: they make no engine")
    question = Question(
        source=traffic.source(),
        hardware=hardware,
        objective=objective,
        attainment=wishes.attainment,
        rate_scale=wishes.rate_scale * wishes.growth,
        seeds=parse_seeds(wishes.seed),
        max_tokens=wishes.max_tokens,
        full_length=wishes.full_length,
    )
    if sampled:
        question = question if wishes.minimize is None else enough(question)
        assumed.append(f"that the first {question.source.limit} requests speak for the rest (--limit, --duration)")
    every = ",".join(f"{each.instances}C@{each.profile.name}" for each in hardware)
    machines = parse_shape(every, None, {each.profile.name: each.profile for each in hardware})
    check_fits(machines, question.source, question.seeds[0])
    assumed += [f"that {remark}" for remark in question.source.remarks()]
    return question, assumed


def _prices(wishes: Wishes, question: "Question") -> dict[str, float] | None:
    """By profile; empty to count GPUs, None where no smallest fleet is asked for. Raises SettingError."""
    from ballast_sim.settings import SettingError
    from ballast_sim.simulation.autoscaling.settings import parse_prices

    if wishes.minimize not in (None, "gpus", "cost"):
        raise SettingError("minimize", f"must be gpus or cost, not {wishes.minimize!r}")
    if wishes.price and wishes.minimize != "cost":
        raise SettingError(("price", "minimize"), "prices count with --minimize cost only")
    if wishes.minimize != "cost":
        return None if wishes.minimize is None else {}
    return parse_prices(wishes.price, {each.profile.name: each.profile for each in question.hardware}, wishes.model)


def _heading(answer: "Answer") -> list[str]:
    """The answer in words."""
    from ballast_cli.recommend_view import known
    from ballast_sim.recommend.search import MOST_GROWTH

    best, question = answer.best, answer.question
    lengths = answer.lengths
    verdict = "meets" if answer.meets else "nothing that was tried meets"
    attained, wanted = _beside([best.attainment, *(share for _, share in answer.growth)], question.attainment)
    lines = [
        f"{question.source.name}, {answer.rate_rps:.3g} requests/s, mean {lengths.input_tokens:.0f} tokens in and "
        f"{lengths.output_tokens:.0f} out{', shared prefixes' if answer.shares_prefixes else ''}",
        f"{best.shape} with {best.variant.name}: {attained[0]} of requests within the SLO "
        f"({verdict} {wanted}), P99 TTFT {known(best.mean('ttft_s', 'p99'), 2, ' s')}, "
        f"P99 TPOT {known(1e3 * best.mean('tpot_s', 'p99'), 1, ' ms')}",
    ]
    if len(answer.growth) > 2:
        headroom = zip(answer.growth, attained[1:], strict=True)
        lines.append("Headroom: " + ", ".join(f"{growth:g} times {share}" for (growth, _), share in headroom))
    if answer.reach is not None:
        most = ", the most that was tried" if answer.reach == MOST_GROWTH else ""
        lines.append(f"It still does at {answer.reach:g} times this traffic{most}")
    elif answer.meets:
        lines.append(f"It no longer does at {answer.growth[0][0]:g} times this traffic")
    else:
        lines.append("Give it more GPUs, or ease the SLO: see what misses in the table")
    return lines


def _beside(shares: Sequence[float], wanted: float) -> tuple[list[str], str]:
    """Shares as percentages, and what was asked for, with so many digits that each is seen to reach it or not."""
    for digits in range(1, 7):
        texts, asked = [f"{100 * share:.{digits}f}" for share in shares], f"{100 * wanted:.{digits}f}"
        read = [(float(text) >= float(asked)) == (share >= wanted) for text, share in zip(texts, shares, strict=True)]
        if all(read) and math.isclose(float(asked), 100 * wanted):
            break
    return [f"{text}%" for text in texts], f"{asked}%"


def _command(answer: "Answer", output: str, profiles: list[Path]) -> str:
    """The `ballast simulate` that prints these figures again; MANIFESTS stands for what went to standard output."""
    question, source = answer.question, answer.question.source
    words = ["ballast", "simulate"]
    words += ["--trace", origin(source.trace)] if source.trace else ["--workload", source.workload]
    words += ["--endpoints", answer.best.shape, "--policy-file", "MANIFESTS" if output == "-" else output]
    words += [word for path in profiles for word in ("--profiles", str(path))]
    limits = {"ttft": question.objective.ttft_s, "tpot": question.objective.tpot_s, "e2e": question.objective.e2e_s}
    words += ["--slo", ",".join(f"{name}={_exact(limit)}" for name, limit in limits.items() if limit)]
    for option, value in (
        ("--rate", source.rate_rps),
        ("--duration", source.duration_s),
        ("--limit", source.limit),
        ("--max-tokens", question.max_tokens),
        ("--rate-scale", question.rate_scale if question.rate_scale != 1 else None),
    ):
        words += [option, _exact(value)] if value is not None else []
    return shlex.join([*words, "--seed", ",".join(map(str, question.seeds))])


def _exact(value: float) -> str:
    """A number that is read as itself; one that is whole as people write it."""
    return str(value).removesuffix(".0")


def _plain(answer: "Answer", assumed: list[str]) -> dict[str, Any]:
    """Everything, as JSON values."""
    return {
        "rate_rps": answer.rate_rps,
        "meets": answer.meets,
        "assumed": assumed,
        "headroom": [{"times": growth, "attainment": attained} for growth, attained in answer.growth],
        "simulated": {"runs": answer.effort.runs, "requests": answer.effort.requests},
        "candidates": [_candidate(answer, each) for each in answer.candidates],
        "dropped": [
            {
                "endpoints": each.shape,
                "policy": each.policy,
                "why": each.why,
                **({} if each.tried is None else _candidate(answer, each.tried)),
            }
            for each in answer.dropped
        ],
    }


def _candidate(answer: "Answer", candidate: "Candidate") -> dict[str, Any]:
    strain = candidate.strain(answer.question.objective)
    return {
        "endpoints": candidate.shape,
        "policy": candidate.variant.name,
        "obstacle": candidate.variant.obstacle,
        "spec": candidate.variant.spec.dump(),
        "attainment": candidate.attainment,
        "strain": strain if math.isfinite(strain) else None,
        "runs": list(candidate.outcomes),
    }
