"""Parts of the chart's file: names in them that may be a person's, and reading one part."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from retuned.errors import UsageError

_MAX_PROBLEMS = 5
M = TypeVar("M", bound=BaseModel)


def _of_people(value: str) -> str:
    if value.lower().startswith("system:"):
        raise ValueError("names that begin with system: belong to the cluster itself")
    return value


PersonName = Annotated[
    str, Field(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$"), AfterValidator(_of_people)
]
"""Name of a user or of a group, as the API server knows it; none of the cluster's own."""


def read_part(model: type[M], given: object, *, where: str) -> M:
    """Read one part of the file.

    Parameters
    ----------
    where
        What the file calls it.

    Raises
    ------
    UsageError
        With each thing that is wrong.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise UsageError(f"{where}: {problems_of(error)}") from error


def problems_of(error: ValidationError) -> str:
    """Return where values are wrong and why, the first few, in one line and without the values."""
    problems = error.errors(include_url=False, include_input=False)[:_MAX_PROBLEMS]
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'the whole'}: {item['msg']}"
        for item in problems
    )
