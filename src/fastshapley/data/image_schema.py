"""The user's images <-> one tensor, or a stream of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from fastshapley.data.stream import Rows, Stream
from fastshapley.errors import InputError
from fastshapley.training.process_group import ProcessGroup

Container = Literal["tensor", "array", "dataset"]
_CHANNELS = (1, 3, 4)  # that an image may have, if it is to be told from one whose channels come last
_LOOK = 16  # images of a Dataset that are looked at
_RANGE = 8.0  # times as wide a range of pixels as at fit is another encoding, 0 to 255 where it was 0 to 1


@dataclass(frozen=True)
class ImageSchema:
    """The layout of images: their ``shape`` (channels, height, width), and the range of the pixels seen at fit.

    Images come as a tensor or an array (n, channels, height, width), or as a Dataset of images, or of tuples that
    start with one; a DataLoader stands for its dataset, read by as many workers. As the network takes them.

    >>> ImageSchema.of(np.zeros((2, 3, 8, 8), dtype=np.float32)).shape
    (3, 8, 8)
    """

    container: Container
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float

    def agreed(self, processes: ProcessGroup) -> ImageSchema:
        """The schema of the images of a whole processes."""
        if any(other != self for other in processes.everyone(self)):
            raise InputError(f"X has images of another shape or type in other processes, and {self.shape} here")
        return self

    @property
    def discrete(self) -> tuple[bool, ...]:
        """There are no columns."""
        return ()

    @classmethod
    def of(cls, X: Any) -> ImageSchema:
        """The schema of some images; of a Dataset's, some are looked at, twice."""
        if _is_dataset(X):
            dataset, _ = _dataset(X, "X")
            if len(dataset) == 0:
                raise InputError("X has no rows")
            numbers = np.linspace(0, len(dataset) - 1, min(_LOOK, len(dataset))).astype(int).tolist()
            some, again = ([_image(dataset[i]) for i in numbers] for _ in range(2))
            if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(some, again, strict=True)):
                raise InputError(
                    "X is a Dataset that gives another image each time: turn its random transforms off"
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

    def encode(self, X: Any, argument: str = "X") -> Rows:
        """The images as one float32 tensor (n, channels, height, width), or as a stream of such; checked."""
        if _is_dataset(X):
            dataset, workers = _dataset(X, argument)
            return Stream(dataset, _Reader(self, argument), torch.arange(len(dataset)), self.shape, workers)
        x = _as_tensor(X, argument)
        self._check(x, argument)
        return x.float()

    def decode(self, x: Tensor) -> Tensor | NDArray[Any]:
        """Images of the user's own type."""
        if self.container == "array":
            return x.detach().cpu().numpy().astype(self.dtype)
        return x.detach().to(getattr(torch, self.dtype))

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain JSON values."""
        return {"images": True, **asdict(self)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ImageSchema:
        """The schema that `to_dict` described."""
        fields = {name: value for name, value in state.items() if name != "images"}
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def _check(self, x: Tensor, argument: str) -> None:
        _check_layout(x, argument)
        if tuple(x.shape[1:]) != self.shape:
            raise InputError(f"{argument} has images of shape {tuple(x.shape[1:])} where {self.shape} is expected")
        if x.numel() == 0:
            return
        low, high = float(x.min()), float(x.max())
        width = self.high - self.low
        if width > 0 and (high - self.high > (_RANGE - 1) * width or self.low - low > (_RANGE - 1) * width):
            raise InputError(
                f"{argument} has pixels from {low:.4g} to {high:.4g}, and at fit they were from {self.low:.4g} to "
                f"{self.high:.4g}: scale {argument} as the images at fit were, for instance {argument} / 255"
            )


@dataclass(frozen=True)
class _Reader:
    """An item of a Dataset to its image; a class, so that other processes can be given it."""

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
    """A Dataset, or that of a DataLoader, and by how many workers it is read."""
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
            f"{where} is {what}: the Dataset must give tensors (channels, height, width), first in a tuple"
        )
    return image


def _check_alike(images: Sequence[Tensor]) -> None:
    shapes = sorted({tuple(image.shape) for image in images})
    if len(shapes) > 1:
        raise InputError(f"X has images of shapes {shapes[0]} and {shapes[1]}: resize them to one")


def _as_tensor(X: Any, argument: str) -> Tensor:
    if isinstance(X, Tensor):
        return X.detach()
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise InputError(f"{argument} has images of several shapes: resize them to one ({error})") from error
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
