"""One version, in one place; a release is refused whose parts disagree (`make release-dry-run` builds all of them)."""

import shutil
from pathlib import Path

import pytest
import yaml

from release import chart, versions


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the files that say a version."""
    for name in ("pyproject.toml", "CHANGELOG.md", *versions.FOLLOWERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(versions.REPOSITORY / name, tmp_path / name)
    return tmp_path


def _bump(root: Path, version: str) -> None:
    text = (root / "pyproject.toml").read_text()
    (root / "pyproject.toml").write_text(
        text.replace(f'version = "{versions.version_of(root)}"', f'version = "{version}"')
    )


def test_all_files_say_the_version_of_pyproject() -> None:
    assert versions.problems() == []


def test_a_new_version_reaches_every_file(root: Path) -> None:
    _bump(root, "7.8.9")
    assert len(versions.problems(root)) == len(versions.FOLLOWERS)
    for name, text in versions.brought_up(root).items():
        (root / name).write_text(text)
    assert versions.problems(root) == []
    read = yaml.safe_load((root / "charts/ballast/Chart.yaml").read_text())
    assert (read["version"], read["appVersion"]) == ("7.8.9", "7.8.9")
    assert yaml.safe_load((root / "CITATION.cff").read_text())["version"] == "7.8.9"


def test_a_tag_must_be_the_version_and_the_changelog_must_have_its_date(root: Path) -> None:
    version = versions.version_of(root)
    wrong, undated = versions.problems(root, tag="v99.0.0")
    assert wrong.startswith(f"tag v99.0.0: pyproject.toml says {version}")
    assert "write `## [" in undated
    log = (root / "CHANGELOG.md").read_text()
    dated = log.replace("## [Unreleased]", f"## [Unreleased]\n\n## [{version}] - 2026-12-01", 1)
    (root / "CHANGELOG.md").write_text(dated)
    assert versions.problems(root, tag=f"v{version}") == []
    assert versions.notes(root).startswith("### Added")


def test_a_version_that_a_chart_cannot_have_is_refused(root: Path) -> None:
    _bump(root, "1.2.0a1")
    with pytest.raises(ValueError, match=r"'1.2.0a1' is not X.Y.Z"):
        versions.problems(root)


def test_the_published_chart_installs_the_image_of_its_release() -> None:
    values = (versions.REPOSITORY / "charts/ballast/values.yaml").read_text()
    read = yaml.safe_load(chart.with_image(values, "registry.example/ballast"))
    before = yaml.safe_load(values)
    assert read["image"] == {**before["image"], "repository": "registry.example/ballast", "tag": ""}
    assert {**read, "image": None} == {**before, "image": None}
    with pytest.raises(ValueError, match="are not where they were"):
        chart.with_image("image:\n    repository: x\n    tag: y\n", "registry.example/ballast")
