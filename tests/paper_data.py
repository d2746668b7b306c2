"""The folder of the paper's data, and a mark that skips tests without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("FASTSHAPLEY_DATA", ""))


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        "FASTSHAPLEY_DATA" not in os.environ or not any((DATA / file).is_file() for file in (name, f"{name}.gz")),
        reason=f"set FASTSHAPLEY_DATA to a folder that holds {name}",
    )
