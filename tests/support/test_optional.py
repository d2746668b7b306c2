"""Imports of optional packages."""

from __future__ import annotations

import json

import pytest

from fastshapley.support.optional import require


def test_an_installed_module_is_returned() -> None:
    assert require("json", "extra") is json


def test_a_missing_module_names_the_package_and_the_extra() -> None:
    with pytest.raises(ImportError, match=r"this needs missing_package: .*pip install 'fastshapley\[some-extra\]'"):
        require("missing_package.part", "some-extra")
