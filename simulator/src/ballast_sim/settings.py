"""What is wrong with a setting, as a value: the field and the fix. A command names the option that sets the field."""

from __future__ import annotations


class SettingError(ValueError):
    """A setting that cannot work. `fields` are the settings' names, `problem` what is wrong and what to do."""

    def __init__(self, fields: str | tuple[str, ...], problem: str) -> None:
        super().__init__(fields, problem)  # both, so that it can be pickled
        self.fields = (fields,) if isinstance(fields, str) else fields
        self.problem = problem

    def __str__(self) -> str:
        return f"{', '.join(self.fields)}: {self.problem}"
