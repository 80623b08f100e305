"""Programs and images are rebuilt exactly when what they are made of changes."""

import shutil
import tarfile
from pathlib import Path

import pytest

from testbed import build, context, oci
from testbed.__main__ import main
from testbed.errors import TestbedError


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A copy of the pinned modules to change."""
    target = tmp_path / "go"
    shutil.copytree(build.GO_ROOT, target)
    return target


@pytest.mark.parametrize(
    "file", ["kubernetes/go.mod", "kubernetes/go.sum", "envoy-gateway/go.mod", "network-policies/main.go"]
)
def test_any_changed_pin_or_source_gives_another_folder(modules: Path, file: str) -> None:
    """The cache key covers versions, checksums and our own sources."""
    before = build.content_hash(modules)
    assert before == build.content_hash()
    with (modules / file).open("a") as stream:
        stream.write("\n// changed\n")
    assert build.content_hash(modules) != before


def test_changed_flags_give_another_folder() -> None:
    """So do flags and the list of programs."""
    first = build.MODULES[0]
    assert build.content_hash(modules=[first]) != build.content_hash(
        modules=[build.GoModule(first.folder, first.packages, "-s")]
    )


def test_a_file_that_go_does_not_read_changes_nothing(modules: Path) -> None:
    """Notes beside the module do not cost ten minutes."""
    before = build.content_hash(modules)
    (modules / "kubernetes" / "README.md").write_text("notes")
    assert build.content_hash(modules) == before


def test_every_version_in_the_pins_is_the_one_that_we_name() -> None:
    """The version that the programs report is the version that is built."""
    text = (build.GO_ROOT / "kubernetes" / "go.mod").read_text()
    assert f"k8s.io/kubernetes {build.KUBERNETES_VERSION}" in text
    staging = build.KUBERNETES_VERSION.replace("v1.", "v0.")
    assert f"k8s.io/client-go => k8s.io/client-go {staging}" in text
    for module in (*build.MODULES, *build.KWOK, *build.LEADER_WORKER_SET):
        declared = (build.GO_ROOT / module.folder / "go.mod").read_text()
        assert all(package == "." or package in declared for package in module.packages)


def test_missing_programs_are_named_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything is started."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(TestbedError, match=r"kubelet.*make testbed-build"):
        build.require_built()


def test_no_go_is_said_before_building(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what to do about it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TestbedError, match=r"Go .* is needed"):
        build.build(lambda _: None)


_LOCK = """# comment
aiohttp==3.14.5 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via kopf
Pytest==9.0 ; sys_platform != 'win32' \\
    --hash=sha256:cc
    # via ballast:dev
typing-extensions==4.1 \\
    --hash=sha256:dd
"""


def test_the_image_gets_the_lock_files_pins_and_hashes_of_its_dependencies_only() -> None:
    """Test tools stay out; names are compared as pip does."""
    text = context.select_requirements(_LOCK, {"aiohttp", "typing-extensions"})
    assert "aiohttp==3.14.5 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n" in text
    assert "typing-extensions==4.1" in text
    assert "Pytest" not in text
    assert "pytest" not in context.select_requirements(_LOCK, {"aiohttp"}).lower()


def test_the_images_python_decides_between_two_locked_versions() -> None:
    """A universal lock file pins a distribution once for each range of Pythons; the image needs exactly its own."""
    lock = (
        "numpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:aa\n"
        "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:bb\n"
    )
    assert context.select_requirements(lock, {"numpy"}) == "numpy==2.4.6 \\\n    --hash=sha256:aa\n"


def test_a_dependency_that_is_not_locked_is_refused() -> None:
    """Rather than taken in some version or other."""
    with pytest.raises(TestbedError, match=r"lacks kopf; run `make lock`"):
        context.select_requirements(_LOCK, {"kopf"})


def test_the_runtime_closure_has_dependencies_of_dependencies_and_no_test_tools() -> None:
    """As installed here: what the image must hold, and every one of them is locked."""
    names = context.runtime_closure()
    assert {"kopf", "numpy", "pydantic-core", "opentelemetry-sdk"} <= names
    assert not {"pytest", "mypy", "ballast"} & names
    assert context.select_requirements((context.REPOSITORY / "requirements.lock").read_text(), names)


def test_an_archive_is_an_oci_layout_that_names_its_image(tmp_path: Path) -> None:
    """And the same files give the same bytes."""
    files = [oci.LayerFile("tmp", 0o1777), oci.LayerFile("pause", 0o755, b"program")]
    for name in ("a.tar", "b.tar"):
        oci.write_archive(tmp_path / name, "localhost/pause:1", files, ["/pause"])
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        names = tar.getnames()
        index = tar.extractfile("index.json")
        assert index is not None
        assert b"localhost/pause:1" in index.read()
    assert names[:2] == ["oci-layout", "index.json"]
    assert len(names) == 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["up", "--name", "Not/OK"], "name:"),
        (["up", "--nodes", "a100:x"], "nodes:"),
        (["run", "--name", "absent-0", "--", "true"], "not up"),
        (["run", "--name", "absent-0"], "give a command"),
        (["status", "--name", "absent-0"], "not up"),
    ],
)
def test_the_command_line_answers_bad_input_with_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Status 1 and a message that names the fix; never a traceback."""
    monkeypatch.setenv("BALLAST_TESTBED_STATE", "/tmp/ballast-test-absent")
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
