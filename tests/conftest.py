"""What all tests share."""

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # the networks here are tiny, and the machine may be busy


@pytest.fixture
def seeded() -> Iterator[None]:
    """New layers draw their weights from the global generator: a seed for it, and its state afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
