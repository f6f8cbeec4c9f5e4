"""Expectations of errors: another code, a missing datum or another place fails the test."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field
from tests.expect import raises_code, raises_invalid, raises_naming

from retuned.errors import CandidateError, UnreadableInput, UsageError


class Port(BaseModel):
    number: int = Field(le=65_535)


def unreadable() -> None:
    raise UnreadableInput("not-json", where="a.json", message="line 3 cannot be read")


def test_the_code_and_each_datum_are_compared() -> None:
    with raises_code(UnreadableInput, "not-json", "a.json", "line 3") as caught:
        unreadable()
    assert caught.value.where == "a.json"
    with pytest.raises(AssertionError), raises_code(UnreadableInput, "not-utf8", "a.json"):
        unreadable()
    with pytest.raises(AssertionError), raises_code(UnreadableInput, "not-json", "line 4"):
        unreadable()


def test_a_reason_counts_as_a_code() -> None:
    with raises_code(CandidateError, "crashed"):
        raise CandidateError("crashed", detail="SIGSEGV")


def test_another_kind_passes_through_and_none_fails() -> None:
    with pytest.raises(UnreadableInput), raises_naming(UsageError):
        unreadable()
    with pytest.raises(pytest.fail.Exception), raises_naming(UsageError):
        pass


def test_the_place_and_the_type_of_an_invalid_value_are_compared() -> None:
    with raises_invalid("number", kind="less_than_equal", names=("65535",)):
        Port(number=70_000)
    with pytest.raises(AssertionError), raises_invalid("port", kind="less_than_equal"):
        Port(number=70_000)
    with pytest.raises(AssertionError), raises_invalid("number"):
        Port(number=70_000)
