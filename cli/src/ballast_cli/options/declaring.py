"""Groups of options as dataclasses, and errors that name the option instead of the setting."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from ballast_cli.options.trace_files import with_origins


@dataclass(frozen=True, slots=True)
class Sets:
    """Beside an option: the setting that it sets, where that has another name."""

    field: str


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with each field of its option groups as a parameter of its own; it still gets the groups."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _parameters(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**built, **values)

    flat.__dict__["__signature__"] = inspect.Signature(parameters)
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]


def in_options(error: Exception, command: Callable[..., None]) -> str:
    """An error's message. The settings of a `SettingError` appear as the command's options that set them."""
    from ballast_sim.settings import SettingError

    if not isinstance(error, SettingError):
        return with_origins(str(error))
    options = option_names(command)
    return with_origins(f"{', '.join(options.get(field, field) for field in error.fields)}: {error.problem}")


def refuse_given(group: Any, to_what: str) -> None:
    """Raises SettingError naming the options of a group that are not as by default, where they would do nothing."""
    from ballast_sim.settings import SettingError

    fields = dataclasses.fields(group)
    given = tuple(field.name for field in fields if getattr(group, field.name) not in (field.default, []))
    if given:
        raise SettingError(given, f"{'belongs' if len(given) == 1 else 'belong'} to {to_what}")


def option_names(command: Callable[..., None]) -> dict[str, str]:
    """A command's options by the setting that each sets, and by parameter."""
    names: dict[str, str] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if get_origin(parameter.annotation) is not Annotated:
            continue
        _, *extras = get_args(parameter.annotation)
        option = "--" + parameter.name.replace("_", "-")
        for extra in extras:
            if isinstance(extra, OptionInfo) and extra.default is not ...:
                option = str(extra.default)  # its name, where that is given
        names[parameter.name] = option
        names |= {extra.field: option for extra in extras if isinstance(extra, Sets)}
    return names
