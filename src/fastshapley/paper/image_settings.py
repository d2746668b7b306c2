"""How the experiments on images are set up: which methods, which evaluators, and how much of everything."""

from __future__ import annotations

from dataclasses import dataclass

METHODS = (
    "FastSHAP",
    "KernelSHAP",
    "KernelSHAP-S",
    "GradCAM",
    "Integrated Gradients",
    "SmoothGrad",
    "DeepSHAP",
    "CXPlain",
    "Random",
)
SLOW = ("KernelSHAP", "KernelSHAP-S")  # on fewer images
EVALUATORS = ("paper", "uniform")


@dataclass(frozen=True)
class ImageScale:
    """How much of everything.

    images: to train on, None for all. epochs: of the surrogate and of the evaluators, None for the set's own.
    share: of the explainer's steps and evaluations; evaluations: of these once more. test, slow, compared: images
    that methods, slow methods, and errors are measured on. truth: evaluations a player for the truth. left_out:
    images that CXPlain learns from. shares: of the training images, for the robustness to limited data;
    robustness: of the explainer's steps and evaluations there. timing_rounds: how often each method is timed, of
    which the least counts.
    """

    images: int | None = None
    epochs: int | None = None
    share: float = 1.0
    evaluations: float = 1.0
    test: int = 1000
    slow: int = 100
    compared: int = 50
    truth: int = 64
    left_out: int = 4000
    shares: tuple[float, ...] = (0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 0.85, 0.95)
    robustness: float = 0.25
    timing_rounds: int = 3


FULL = {
    "cifar10": ImageScale(),
    # a network that takes three times as long
    "imagenette": ImageScale(evaluations=0.4, compared=25, left_out=2000, shares=(0.05, 0.25, 0.5, 0.95)),
}
QUICK = ImageScale(
    images=1000, epochs=2, share=0.05, test=100, slow=4, compared=4, truth=8, left_out=64, shares=(0.1, 0.5)
)  # a look at everything, not the paper's figures
