"""Bundles: groups of shared options, declared once as a dataclass and taken by a command as one.

@app.command()
@bundled
def heads(text: TextOptions, model: ModelOptions, battery: bool = True) -> None: ...
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """Give Typer a command in which each parameter that is a dataclass stands as its fields."""
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            bundles[name] = hint
            parameters += _fields(hint)
        else:
            parameters.append(
                parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, bundle in bundles.items():
            fields = [field.name for field in dataclasses.fields(bundle)]
            given[name] = bundle(**{field: given.pop(field) for field in fields})
        command(**given)

    made: Any = called
    made.__signature__ = inspect.Signature(parameters)
    made.__annotations__ = {p.name: p.annotation for p in parameters}
    del made.__wrapped__  # or Typer would look behind it
    return called


def _fields(bundle: type) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(bundle)
    ]
