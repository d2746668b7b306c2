"""What all tests share."""

import torch

torch.set_num_threads(1)  # the networks here are tiny, and the machine may be busy
