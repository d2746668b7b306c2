"""The methods, the evaluators and the size of the experiments on images."""

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
SLOW = ("KernelSHAP", "KernelSHAP-S")  # methods that are measured on fewer images
EVALUATORS = ("paper", "uniform")


@dataclass(frozen=True)
class ImageScale:
    """The size of the experiments.

    Parameters
    ----------
    images : int or None
        The number of images for training and validation, or None for all.
    epochs : int or None
        The number of epochs of the surrogate and the evaluators, or None for that of the image set.
    share : float
        The share of the explainer's steps and evaluations.
    evaluations : float
        A further factor of the explainer's evaluations.
    test : int
        The number of test images.
    slow : int
        The number of test images for slow methods.
    compared : int
        The number of test images with converged values.
    truth : int
        The number of evaluations per player of converged values.
    left_out : int
        The number of images that CXPlain learns from.
    shares : tuple of float
        The shares of the training images, for the robustness to limited data.
    robustness : float
        The share of the explainer's steps and evaluations there.
    timing_rounds : int
        How often each method is timed. The shortest time counts.
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
    # Its network takes three times as long.
    "imagenette": ImageScale(evaluations=0.4, compared=25, left_out=2000, shares=(0.05, 0.25, 0.5, 0.95)),
}
QUICK = ImageScale(
    images=1000, epochs=2, share=0.05, test=100, slow=4, compared=4, truth=8, left_out=64, shares=(0.1, 0.5)
)  # all experiments in minutes, without the accuracy of the paper's
