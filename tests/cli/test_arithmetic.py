"""BALLAST_KERNEL: the arithmetic that the command decides by."""

from __future__ import annotations

import pytest
import typer

from ballast_cli.arithmetic import choose_arithmetic
from ballast_core import kernel
from tests.support.kernels import deciding_by, needs_kernel


@needs_kernel
def test_it_is_chosen_by_the_environment() -> None:
    with deciding_by(compiled=True):
        choose_arithmetic("off")
        assert kernel.name() == "numpy"
        choose_arithmetic("auto")
        assert kernel.name() == "numpy"
        choose_arithmetic("on")
        assert kernel.name() != "numpy"


def test_another_word_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        choose_arithmetic("yes")
    assert "BALLAST_KERNEL: must be auto, on or off, not 'yes'" in capsys.readouterr().err


def test_a_kernel_that_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_INSTALLED", None)
    with pytest.raises(typer.Exit):
        choose_arithmetic("on")
    assert "made without a C compiler" in capsys.readouterr().err
