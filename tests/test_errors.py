"""Tests of the library's exceptions."""

from __future__ import annotations

import pytest

from fastshapley import errors


@pytest.mark.parametrize(
    ("error", "standard"),
    [
        (errors.InputError, ValueError),
        (errors.ModelError, ValueError),
        (errors.FileFormatError, ValueError),
        (errors.TrainingError, RuntimeError),
        (errors.ExportError, RuntimeError),
        (errors.ServerError, RuntimeError),
        (errors.PartError, RuntimeError),
    ],
)
def test_each_error_is_also_a_standard_exception(error: type[Exception], standard: type[Exception]) -> None:
    with pytest.raises(standard, match="the message"):
        raise error("the message")
