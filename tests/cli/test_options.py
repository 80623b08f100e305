"""Options are declared once, beside the settings that they set, and errors name them."""

import pickle

import pytest

from ballast_cli.calibrate import calibrate_command
from ballast_cli.load import load_command
from ballast_cli.options.declaring import in_options, option_names
from ballast_cli.options.surroundings import Surroundings
from ballast_cli.recommend import recommend_command
from ballast_cli.simulate import simulate_command
from ballast_sim.settings import SettingError
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings


def test_a_setting_is_named_by_the_option_that_sets_it() -> None:
    error = SettingError(("rate_scale", "rate_rps"), "both are wrong; leave them out")
    assert in_options(error, simulate_command) == "--rate-scale, --rate: both are wrong; leave them out"
    assert str(error) == "rate_scale, rate_rps: both are wrong; leave them out"


def test_an_option_with_a_name_of_its_own_keeps_it() -> None:
    assert option_names(simulate_command)["json_out"] == "--json"


def test_a_setting_without_an_option_and_other_errors_keep_their_words() -> None:
    assert in_options(SettingError("admit_limit_s", "no"), simulate_command) == "admit_limit_s: no"
    assert in_options(ValueError("trace.csv: line 3"), simulate_command) == "trace.csv: line 3"


def test_no_options_mean_the_settings_own_defaults() -> None:
    assert Surroundings().settings(()) == FleetSettings(known_limits=False)


@pytest.mark.parametrize("field", ["scrape_interval_s", "scrape_delay_s", "scrape_loss_ratio", "gateways", "physics"])
def test_settings_of_a_fleet_have_options(field: str) -> None:
    assert field in FleetSettings.__dataclass_fields__
    assert field in option_names(simulate_command)


@pytest.mark.parametrize("command", [simulate_command, recommend_command, calibrate_command, load_command])
def test_settings_that_commands_share_have_one_option_name(command: object) -> None:
    names = option_names(command)  # type: ignore[arg-type]
    assert (names["rate_rps"], names["duration_s"], names["limit"]) == ("--rate", "--duration", "--limit")


def test_an_error_comes_back_whole_from_a_worker_process() -> None:
    error = pickle.loads(pickle.dumps(SettingError("load", "too much")))
    assert (error.fields, error.problem, str(error)) == (("load",), "too much", "load: too much")
