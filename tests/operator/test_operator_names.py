"""Names: of children, and of the folder `operator/`, which must not become Python's `operator`."""

from __future__ import annotations

import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_operator.kinds import EXTENSION_POLICY, GATEWAY, HTTP_ROUTE, INFERENCE_POOL, TRAFFIC_POLICY
from ballast_operator.planning.plan import plan
from tests.support.operator_builders import observed, pool, serving_pool

ROOT = Path(__file__).parents[2]
DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
EVERYTHING = frozenset({EXTENSION_POLICY, GATEWAY, HTTP_ROUTE, INFERENCE_POOL, TRAFFIC_POLICY})


@settings(max_examples=30)
@given(
    name=st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True),
    entry=st.from_regex(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True).filter(
        lambda text: not text.startswith("gateway")
    ),
)
def test_every_name_that_the_api_allows_gives_dns_labels_of_63_characters(name: str, entry: str) -> None:
    """Services need RFC 1035 labels, label values have 63 characters at most."""
    spec = serving_pool(pool(entry, "Flexible"), name=name, gateway={"face": "Both", "parentRefs": [{"name": "g"}]})
    objects = plan(observed(spec, optional_kinds=EVERYTHING)).apply
    assert objects
    names = [item["metadata"]["name"] for item in objects]
    assert [text for text in names if len(text) > 63 or not DNS_LABEL.match(text)] == []
    assert len({(item["kind"], item["metadata"]["name"]) for item in objects}) == len(objects)


def test_operator_is_the_standard_librarys() -> None:
    """In this very process, with the repository root on the path."""
    assert operator.add(2, 3) == 5
    assert ROOT not in Path(str(operator.__file__)).parents


@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["with-root-on-the-path", "isolated"])
def test_operator_is_the_standard_librarys_in_a_fresh_process(flags: tuple[str, ...]) -> None:
    """Started in the repository root, with the root on PYTHONPATH: where a package of that name would win."""
    code = "import operator, collections, ballast_operator.planning.plan; print(operator.__file__, operator.add(2, 3))"
    result = subprocess.run(
        [sys.executable, *flags, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    where, total = result.stdout.split()
    assert total == "5"
    assert ROOT not in Path(where).parents


def test_the_folder_operator_is_no_package_and_holds_no_module() -> None:
    """An `__init__.py` there would shadow the standard library for whoever has the root on the path."""
    assert [str(path) for path in (ROOT / "operator").glob("*.py")] == []
    assert not (ROOT / "operator" / "src" / "__init__.py").exists()
