"""The user's images as one tensor, or as a stream of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from fastshapley.data.augmentation import mix_rows
from fastshapley.data.players import Partition, Players, Superpixels
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows, Stream
from fastshapley.errors import InputError
from fastshapley.explanation import Values, maps
from fastshapley.support.shap_import import shap

Container = Literal["tensor", "array", "dataset"]
_CHANNELS = (1, 3, 4)  # numbers of channels that tell images with channels first from images with channels last
_INSPECTED_IMAGES = 16  # images of a Dataset that are read to find the layout
_LARGEST_RANGE = 8.0  # a range of pixels this many times as wide as at fit means another encoding, such as 0 to 255


@dataclass(frozen=True)
class ImageSchema(Schema):
    """The layout of images.

    Images are a tensor or an array (n, channels, height, width), or a Dataset of images, or of tuples that start
    with one. A DataLoader stands for its dataset, which is read by the same number of workers. Pixels are those
    that the network takes.

    Attributes
    ----------
    container : str
        ``"tensor"``, ``"array"`` or ``"dataset"``.
    shape : tuple of int
        (channels, height, width).
    dtype : str
        The type of the pixels.
    low, high : float
        The range of the pixels at fit.

    Examples
    --------
    >>> ImageSchema.of(np.zeros((2, 3, 8, 8), dtype=np.float32)).shape
    (3, 8, 8)
    """

    kind = "image"
    noun = "images"
    suits_one_thread = False  # convolutions have work for all threads

    container: Container
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float

    @classmethod
    def of(cls, X: Any) -> Self:
        """Return the schema of some images.

        Some images of a Dataset are read twice, to see that it returns the same images each time.

        Raises
        ------
        InputError
            If X does not hold images of one shape, or holds none.
        """
        if _is_dataset(X):
            dataset, _ = _dataset(X, "X")
            if len(dataset) == 0:
                raise InputError("X has no rows")
            numbers = np.linspace(0, len(dataset) - 1, min(_INSPECTED_IMAGES, len(dataset))).astype(int).tolist()
            some, again = ([_image(dataset[i]) for i in numbers] for _ in range(2))
            if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(some, again, strict=True)):
                raise InputError(
                    "X is a Dataset that returns a different image each time: turn its random transforms off"
                )
            _check_alike(some)
            x, container = torch.stack(some), "dataset"
        else:
            x, container = _as_tensor(X, "X"), "tensor" if isinstance(X, Tensor) else "array"
        _check_layout(x, "X")
        if len(x) == 0:
            raise InputError("X has no rows")
        dtype = str(x.dtype).removeprefix("torch.")
        return cls(container, tuple(x.shape[1:]), dtype, float(x.min()), float(x.max()))  # type: ignore[arg-type]

    def agreed(self, everyone: Sequence[Self]) -> Self:
        """Return this schema, which all processes must share."""
        if any(other != self for other in everyone):
            raise InputError(f"X has images of another shape or type in other processes, and {self.shape} here")
        return self

    def encode(self, X: Any, argument: str = "X") -> Rows:
        """Return the images as one float32 tensor (n, channels, height, width), or as a stream of such images."""
        if _is_dataset(X):
            dataset, workers = _dataset(X, argument)
            return Stream(dataset, _Reader(self, argument), torch.arange(len(dataset)), self.shape, workers)
        x = _as_tensor(X, argument)
        self._check(x, argument)
        return x.float()

    def decode(self, x: Tensor) -> Tensor | NDArray[Any]:
        """Return images of the user's own type."""
        if self.container == "array":
            return x.detach().cpu().numpy().astype(self.dtype)
        return x.detach().to(getattr(torch, self.dtype))

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain JSON values."""
        return {"images": True, **asdict(self)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the schema that `to_dict` described."""
        fields = {name: value for name, value in state.items() if name != "images"}
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def _bind(self, players: Superpixels | None) -> Partition:
        if players is None:
            raise InputError("players is None, but X has images: pass players=Superpixels(grid=14)")
        return players.bind_image(self.shape)

    def players_of(self, partition: Partition) -> Players:
        """Return the players as `Superpixels`."""
        if partition.grid is not None:
            return Superpixels(partition.grid, fill=partition.fill)
        segmentation = np.reshape(partition.owner, partition.shape[1:])
        return Superpixels(segmentation=segmentation, fill=partition.fill)

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Images have no columns."""
        return ()

    def augment(self, x: Tensor, count: int, generator: torch.Generator, owner: Sequence[int]) -> Tensor:
        """Return ``count`` new images that are mixed from the images ``x``; see `mix_rows`."""
        flat = x.flatten(1)
        channels = flat.shape[1] // len(owner) if owner else 1  # each channel of a pixel belongs to its player
        mixed = mix_rows(flat, count, [False] * flat.shape[1], generator, [*owner] * channels)
        return mixed.to(x.dtype).reshape(count, *x.shape[1:])

    def baseline_row(self, x: Rows, players: Partition, values: Mapping[str, Any] | None) -> Tensor:
        """Return an image (1, channels, height, width) of the players' fill."""
        if values is not None:
            raise InputError("values is a mapping from columns to values, but X has images: pass one image")
        return players.filling(x[:1]).expand_as(x[:1]).contiguous()

    def missing_row(self, x: Rows) -> Tensor:
        """Refuse: pixels cannot be missing."""
        raise InputError("pixels cannot be missing: use Baseline(), which gives hidden pixels the players' fill")

    @property
    def summary_names(self) -> tuple[str, ...]:
        """The mean and the spread of each channel."""
        return tuple(f"{what} of channel {c}" for what in ("mean", "spread") for c in range(self.shape[0]))

    @property
    def summary_discrete(self) -> tuple[bool, ...]:
        """Means and spreads are numbers."""
        return (False,) * len(self.summary_names)

    def summarise(self, x: Tensor) -> Tensor:
        """Return the mean and the spread of each channel, (n, 2 * channels)."""
        return channel_statistics(x)

    def examples(self, sample: Tensor, count: int) -> Tensor:
        """Return ``count`` random images."""
        generator = torch.Generator().manual_seed(0)
        return torch.rand(count, *self.shape, generator=generator)

    def explanation(
        self, x: Rows, values: Values, players: Partition, *, upsample: bool = False
    ) -> shap.Explanation:
        """Return the explanation of images.

        The images in it have their channels last, as plots expect, and lie between 0 and 1: others are rescaled.
        """
        data = x[:].movedim(1, -1).cpu().numpy()
        if len(data) and (data.min() < 0 or data.max() > 1):
            data = (data - data.min()) / max(float(data.max() - data.min()), 1e-12)
        upsample = upsample or players.grid is None
        return values.explanation(lambda v: maps(v, players, upsample=upsample)[..., None, :], data=data)

    def shaped_values(self, values: Tensor, players: Partition, *, upsample: bool = False) -> NDArray[np.float64]:
        """Return values as maps; see `maps`."""
        return maps(values, players, upsample=upsample)

    def _check(self, x: Tensor, argument: str) -> None:
        _check_layout(x, argument)
        if tuple(x.shape[1:]) != self.shape:
            raise InputError(f"{argument} has images of shape {tuple(x.shape[1:])} where {self.shape} is expected")
        if x.numel() == 0:
            return
        low, high = float(x.min()), float(x.max())
        width = self.high - self.low
        margin = (_LARGEST_RANGE - 1) * width
        if width > 0 and (high - self.high > margin or self.low - low > margin):
            raise InputError(
                f"{argument} has pixels from {low:.4g} to {high:.4g}, and at fit they were from {self.low:.4g} to "
                f"{self.high:.4g}: scale {argument} as the images at fit, for instance {argument} / 255"
            )


def channel_statistics(x: Tensor) -> Tensor:
    """Return the mean and the spread of each channel of images (n, channels, ...), (n, 2 * channels)."""
    pixels = x.flatten(2)
    return torch.cat([pixels.mean(2), pixels.std(2)], dim=1)


@dataclass(frozen=True)
class _Reader:
    """Returns the image of an item of a Dataset. It is a class so that it can be sent to other processes."""

    schema: ImageSchema
    argument: str

    def __call__(self, item: Any, number: int) -> Tensor:
        where = f"item {number} of {self.argument}"
        image = _image(item, where)
        self.schema._check(image[None], where)
        return image.float()


def _is_dataset(X: Any) -> bool:
    return not (isinstance(X, Tensor | np.ndarray | list | tuple) or hasattr(X, "__array__"))


def _dataset(X: Any, argument: str) -> tuple[Any, int]:
    """Return the Dataset, of a DataLoader its own one, and the number of workers that read it."""
    dataset, workers = (X.dataset, X.num_workers) if isinstance(X, DataLoader) else (X, 0)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        what = type(dataset).__name__
        raise InputError(
            f"{argument} is a {what}: pass a tensor, an array, or a Dataset with a length and items by number"
        )
    return dataset, workers


def _image(item: Any, where: str = "an item of X") -> Tensor:
    image = item[0] if isinstance(item, tuple | list) else item
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(image)
    if not isinstance(image, Tensor) or image.ndim != 3:
        what = f"of shape {tuple(image.shape)}" if isinstance(image, Tensor) else f"a {type(image).__name__}"
        raise InputError(
            f"{where} is {what}: the Dataset must return tensors (channels, height, width), or tuples that start "
            "with one"
        )
    return image


def _check_alike(images: Sequence[Tensor]) -> None:
    shapes = sorted({tuple(image.shape) for image in images})
    if len(shapes) > 1:
        raise InputError(f"X has images of shapes {shapes[0]} and {shapes[1]}: resize them to one shape")


def _as_tensor(X: Any, argument: str) -> Tensor:
    if isinstance(X, Tensor):
        return X.detach()
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise InputError(f"{argument} has images of several shapes: resize them to one shape ({error})") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"{argument} has dtype {array.dtype}: pass images as numbers")
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_layout(x: Tensor, argument: str) -> None:
    if x.ndim != 4:
        raise InputError(
            f"{argument} has shape {tuple(x.shape)}: pass images of shape (n, channels, height, width); "
            f"one image is {argument}[None]"
        )
    if x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        raise InputError(
            f"{argument} has shape {tuple(x.shape)}, channels last: pass (n, channels, height, width), "
            f"such as {argument}.transpose(0, 3, 1, 2) of an array or {argument}.permute(0, 3, 1, 2) of a tensor"
        )
    if not x.is_floating_point():
        raise InputError(
            f"{argument} has dtype {str(x.dtype).removeprefix('torch.')}: pass the floats that the network takes, "
            f"for instance {argument} / 255"
        )
    if not x.isfinite().all():
        raise InputError(f"{argument} has pixels that are not finite")
