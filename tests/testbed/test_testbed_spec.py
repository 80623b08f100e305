"""A cluster's description: what is accepted, what is refused and why, and what becomes of it on disk."""

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.spec import DEFAULT_NODES, ClusterPaths, ClusterSpec, parse_name, parse_nodes


def test_nodes_are_numbered_per_hardware_and_get_their_own_addresses() -> None:
    """Two pools and a plain node: names, labels, GPUs and address ranges never collide."""
    nodes = parse_nodes("a100:4,h20,h20:2,none")
    assert [(n.name, n.hardware, n.gpus) for n in nodes] == [
        ("a100-1", "a100", 4),
        ("h20-1", "h20", 8),
        ("h20-2", "h20", 2),
        ("general-1", None, 0),
    ]
    assert len({n.address for n in nodes}) == len({n.pod_subnet for n in nodes}) == 4
    assert nodes[0].labels == {"serving.ballast.dev/hardware": "a100"}
    assert nodes[3].labels == {}


def test_the_default_has_both_hardware_pools_and_a_plain_node() -> None:
    """What the scenarios rely on."""
    assert {n.hardware for n in parse_nodes(DEFAULT_NODES)} == {"a100", "h20", None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be HARDWARE"),
        ("A100", "must be HARDWARE"),
        ("h" * 25, "must be HARDWARE"),
        ("a100:x", "GPU count"),
        ("a100:-1", "GPU count"),
        ("a100:65", "GPU count"),
        ("none:1", "without a hardware name"),
        (",".join(["h20"] * 10), "too many"),
        ("a100,,h20", "must be HARDWARE"),
    ],
)
def test_bad_nodes_are_refused_with_the_field_and_the_fix(text: str, message: str) -> None:
    """Every refusal names the argument."""
    with pytest.raises(TestbedError, match=message) as caught:
        parse_nodes(text)
    assert str(caught.value).startswith("nodes:")


@pytest.mark.parametrize("name", ["", "Dev", "1a", "a/b", "..", "a" * 21, "a-", "a\nb"])
def test_bad_names_are_refused(name: str) -> None:
    """A name becomes a folder and a cgroup: no path can be smuggled in."""
    with pytest.raises(TestbedError, match="name:"):
        parse_name(name)


def test_a_spec_survives_the_disk() -> None:
    """The supervisor reads what `up` wrote."""
    spec = ClusterSpec("dev", parse_nodes(DEFAULT_NODES), 6443, "native")
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_a_state_folder_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    """Unix socket paths end at 107 bytes; the message says how to get a shorter one."""
    with pytest.raises(TestbedError, match="BALLAST_TESTBED_STATE"):
        ClusterPaths.of("dev", tmp_path / ("x" * 80))


def test_all_sockets_fit_below_the_longest_allowed_folder() -> None:
    """The bound on the state folder leaves room for the longest node name."""
    paths = ClusterPaths(Path("/" + "x" * 63))
    assert len(str(paths.containerd_socket("h" * 24 + "-1"))) <= 107
