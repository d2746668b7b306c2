"""The file of an explainer: safetensors with the configuration as JSON in its metadata.

Loading a file never executes anything in it.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as serialize_tensors
from safetensors.torch import save_file
from torch import Tensor, nn

from fastshapley.data.kinds import schema_from_dict
from fastshapley.data.players import Partition
from fastshapley.errors import FileFormatError, InputError
from fastshapley.fit.fitted import Fitted
from fastshapley.fit.settings import Settings
from fastshapley.networks.backbone import Backbone
from fastshapley.networks.builders import builder_for
from fastshapley.networks.network_builder import SavedNetwork
from fastshapley.networks.weights import load_weights, with_prefix
from fastshapley.support.atomic_files import write_atomically
from fastshapley.training.loop import Training
from fastshapley.training.recipes import Layers, Recipe, Targets
from fastshapley.trust.drift import Reference
from fastshapley.trust.error_bars import ErrorBars
from fastshapley.trust.report import Report
from fastshapley.value_functions.base_game import GameContext
from fastshapley.value_functions.registry import describe_game, restore_game, setting_of
from fastshapley.version import __version__

FORMAT = 2  # Format 1 held tables only.
_KEY = "fastshapley"  # name of the configuration in the metadata
_LONGEST_HEADER = 100_000_000  # bytes that safetensors accepts
_READ_BYTES = 1 << 20  # bytes that are read from a stream at once


def save(fitted: Fitted, settings: Settings, path: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write a fitted explainer to a file or a binary stream.

    A file is replaced only when the new one is complete.

    Parameters
    ----------
    fitted : Fitted
        What the explainer has learnt.
    settings : Settings
        Its parameters.
    path : str, os.PathLike or binary stream
        Where to write.

    Raises
    ------
    InputError
        If the explainer has column names or categories that JSON cannot hold.
    """
    game, game_tensors = describe_game(fitted.game)
    metadata = {_KEY: json.dumps(_config(fitted, settings, game))}
    tensors = {f"network.{name}": tensor for name, tensor in fitted.network.state_dict().items()}
    tensors |= {f"value_function.{name}": tensor for name, tensor in game_tensors.items()}
    if fitted.errors is not None:
        tensors |= {f"errors.{name}": tensor for name, tensor in fitted.errors.head.state_dict().items()}
    tensors |= {f"reference.{name}": tensor for name, tensor in vars(fitted.reference).items()}
    # A module may have a layer under two names, but safetensors refuses shared memory.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    if isinstance(path, str | os.PathLike):
        write_atomically(Path(path), lambda temporary: save_file(tensors, temporary, metadata))
    else:
        _check_binary(path)
        path.write(serialize_tensors(tensors, metadata))


def _config(fitted: Fitted, settings: Settings, game: dict[str, Any]) -> dict[str, Any]:
    """Return all of an explainer that is not a tensor, as plain JSON values."""
    recipe, report, seed = settings.recipe, fitted.report, settings.random_state
    return {
        "format": FORMAT,
        "version": __version__,
        "schema": fitted.schema.to_dict(),
        "players": asdict(fitted.partition),
        "output_names": fitted.output_names,
        "network": fitted.network.config,
        "value_function": game,
        "link": game.get("link", settings.link),
        "logits": settings.logits,
        "normalize": fitted.normalize,
        "penalty": float(settings.penalty),
        "random_state": int(seed) if isinstance(seed, Integral) else None,
        "losses": fitted.losses,
        "recipe": asdict(recipe) if isinstance(recipe, Recipe) else recipe,
        "report": None if report is None else report.to_dict(),
    }


@dataclass(frozen=True)
class GivenObjects:
    """What a file does not hold, and the user passes to read it: see ``FastSHAP.load``."""

    model: Any = None
    network: nn.Module | Backbone | None = None
    value_function: Any = None
    device: str | torch.device | None = None


def load(path: str | os.PathLike[str] | IO[bytes], given: GivenObjects) -> tuple[Settings, Fitted]:
    """Read the explainer in a file or a binary stream.

    Parameters
    ----------
    path : str, os.PathLike or binary stream
        What `save` wrote.
    given : GivenObjects
        What the file does not hold.

    Returns
    -------
    settings : Settings
        The parameters of the explainer.
    fitted : Fitted
        What it has learnt.

    Raises
    ------
    FileFormatError
        If the file is damaged, is of another kind or of a newer format, or needs an object of the user's.
    """
    where = path if isinstance(path, str | os.PathLike) else "the stream"
    config, tensors = _parse(_read(path), where)
    schema, partition = schema_from_dict(config["schema"]), _partition(config["players"])
    settings = Settings(
        given.model,
        value_function=setting_of(config["value_function"], given.value_function),
        players=schema.players_of(partition),
        link=config["link"],
        logits=config.get("logits", False),
        network=given.network,
        normalize=config["normalize"],
        penalty=config["penalty"],
        recipe=_recipe(config["recipe"]),
        device=given.device,
        random_state=config.get("random_state"),
    )
    place = settings.resolved_device()
    tensors = {name: tensor.to(place) for name, tensor in tensors.items()}
    context = GameContext(schema, partition, place, given.model, settings.logits, given.value_function)
    errors = None
    with torch.random.fork_rng(devices=[]):  # New networks draw weights, which those of the file replace.
        saved = SavedNetwork(config["network"], schema, partition, given.network, given.model)
        network = builder_for(schema).saved_explainer(saved).to(place)
        game = restore_game(config["value_function"], with_prefix(tensors, "value_function"), context)
        load_weights(network, with_prefix(tensors, "network"), "network" if given.network is not None else "model")
        if network.leaves is not None:
            network.leaves.check()
        if weights := with_prefix(tensors, "errors"):
            errors = ErrorBars(network)
            load_weights(errors.head, weights, "network")
    if not (reference := with_prefix(tensors, "reference")):
        raise FileFormatError(
            f"{where} was written before explainers kept a reference for check: fit and save it again"
        )
    report = None if config["report"] is None else Report.from_dict(config["report"])
    fitted = Fitted(
        schema,
        partition,
        game,
        network.eval(),
        tuple(config["output_names"]),
        config["losses"],
        errors,
        report,
        Reference(**{name: reference[name] for name in Reference.__dataclass_fields__}),
        config["normalize"],
    )
    return settings, fitted


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration in a file: everything but the tensors. It needs no model."""
    return _parse(_read(path), path)[0]


def _read(file: str | os.PathLike[str] | IO[bytes]) -> bytes:
    """Return all bytes of a file; of a stream, those that `save` wrote, so that others may follow."""
    if not isinstance(file, str | os.PathLike):
        _check_binary(file)
        start = _exactly(file, 8)
        header = _exactly(file, min(int.from_bytes(start, "little"), _LONGEST_HEADER))
        return start + header + _exactly(file, _size(header))
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file that FastSHAP.save wrote")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return path.read_bytes()


def _exactly(file: IO[bytes], size: int) -> bytes:
    """Return ``size`` bytes, or fewer if the stream ends.

    A pipe returns a part at a time, and a damaged header asks for too many bytes.
    """
    parts: list[bytes] = []
    while size > 0 and (part := file.read(min(size, _READ_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_binary(file: Any) -> None:
    if isinstance(file, io.TextIOBase) or not (hasattr(file, "read") or hasattr(file, "write")):
        raise InputError(
            f"path is {file!r}: pass a path, or a file that is open in binary mode, such as open(path, 'rb')"
        )


def _size(header: bytes) -> int:
    """Return the number of bytes that follow the header of safetensors; 0 for something else."""
    try:
        return max(
            int(entry["data_offsets"][1]) for name, entry in json.loads(header).items() if name != "__metadata__"
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0


def _parse(data: bytes, where: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors that `save` wrote."""
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        if str(where).endswith(".onnx"):
            raise FileFormatError(
                f"{where} is a graph, for serve and page: pass the file that it was exported from"
            ) from None
        raise FileFormatError(f"{where} is cut short, damaged or not an explainer file ({error})") from error
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    if _KEY not in metadata:
        raise FileFormatError(f"{where} is a safetensors file, but not one that FastSHAP.save wrote")
    config: dict[str, Any] = json.loads(metadata[_KEY])
    if config["format"] > FORMAT:
        raise FileFormatError(
            f"{where} was written by fastshapley {config['version']} in format {config['format']}; this is "
            f"{__version__}, which reads formats up to {FORMAT}: upgrade fastshapley"
        )
    return config, tensors


def _partition(config: dict[str, Any]) -> Partition:
    return Partition(**{name: tuple(value) if isinstance(value, list) else value for name, value in config.items()})


def _recipe(config: Any) -> Any:
    if isinstance(config, str):
        return config
    return Recipe(
        **{
            **config,
            "surrogate": tuple(Training(**stage) for stage in config["surrogate"]),
            "explainer": Training(**config["explainer"]),
            "errors": None if config.get("errors") is None else Training(**config["errors"]),
            "surrogate_layers": Layers(**config["surrogate_layers"]),
            "explainer_layers": Layers(**config["explainer_layers"]),
            "targets": None if config["targets"] is None else Targets(**config["targets"]),
        }
    )
