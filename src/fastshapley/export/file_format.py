"""The file of an explainer: safetensors with the configuration as JSON in its metadata.

Loading a file never executes anything in it. A SHA-256 digest in the configuration covers all bytes of the file,
with zeros in the place of the digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as serialize_tensors
from torch import Tensor, nn

from fastshapley.data.kinds import schema_from_dict
from fastshapley.data.players import Partition
from fastshapley.errors import FileFormatError, InputError, ModelError
from fastshapley.export.file_header import (
    FORMAT,
    check_binary,
    configuration,
    metadata_of,
    naming_other_files,
    read_file,
    with_own_digest,
)
from fastshapley.export.size_limits import at_most_parameters, check_sizes
from fastshapley.fit.fitted import Fitted
from fastshapley.fit.settings import Settings
from fastshapley.networks.backbone import Backbone
from fastshapley.networks.builders import builder_for
from fastshapley.networks.network_builder import SavedNetwork
from fastshapley.networks.weights import load_weights, with_prefix
from fastshapley.support.atomic_files import write_bytes
from fastshapley.training.loop import Training
from fastshapley.training.recipes import Layers, Recipe, Targets
from fastshapley.trust.drift import Reference
from fastshapley.trust.error_bars import ErrorBars
from fastshapley.trust.report import Report
from fastshapley.value_functions.base_game import GameContext, imitation_of
from fastshapley.value_functions.registry import describe_game, restore_game, setting_of
from fastshapley.version import __version__


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
    metadata = metadata_of(_config(fitted, settings, game))
    tensors = {f"network.{name}": tensor for name, tensor in fitted.network.state_dict().items()}
    tensors |= {f"value_function.{name}": tensor for name, tensor in game_tensors.items()}
    if fitted.errors is not None:
        tensors |= {f"errors.{name}": tensor for name, tensor in fitted.errors.head.state_dict().items()}
    tensors |= {f"reference.{name}": tensor for name, tensor in vars(fitted.reference).items()}
    # A module may have a layer under two names, but safetensors refuses shared memory.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = with_own_digest(serialize_tensors(tensors, metadata))
    if isinstance(path, str | os.PathLike):
        write_bytes(Path(path), data)
    else:
        check_binary(path)
        path.write(data)


def _config(fitted: Fitted, settings: Settings, game: dict[str, Any]) -> dict[str, Any]:
    """Return all of an explainer that is not a tensor, as plain JSON values."""
    recipe, report, seed = settings.recipe, fitted.report, settings.random_state
    return {
        "format": FORMAT,
        "version": __version__,
        "schema": fitted.schema.to_dict(),
        "players": asdict(fitted.partition),
        "output_names": fitted.output_names,
        "output_names_given": settings.output_names is not None,
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
    data = read_file(path)
    config, tensors = _parse(data, where)
    with _naming_damage(where):
        settings = _settings(config, given)
    device = settings.resolved_device()
    with _naming_damage(where):
        check_sizes([config["network"], config["players"], config["value_function"]], len(data))
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        with at_most_parameters(len(data)):
            fitted = _fitted(config, tensors, given, device)
    return settings, fitted


def _settings(config: dict[str, Any], given: GivenObjects) -> Settings:
    """Return the parameters of the explainer in a file."""
    return Settings(
        given.model,
        value_function=setting_of(config["value_function"], given.value_function),
        players=schema_from_dict(config["schema"]).players_of(_partition(config["players"])),
        link=config["link"],
        logits=config.get("logits", False),
        network=given.network,
        normalize=config["normalize"],
        penalty=config["penalty"],
        output_names=tuple(config["output_names"]) if config.get("output_names_given") else None,
        recipe=_recipe(config["recipe"]),
        device=given.device,
        random_state=config.get("random_state"),
    )


def _fitted(
    config: dict[str, Any], tensors: dict[str, Tensor], given: GivenObjects, device: torch.device
) -> Fitted:
    """Return what the explainer in a file has learnt."""
    schema, partition = schema_from_dict(config["schema"]), _partition(config["players"])
    logits = config.get("logits", False)
    context = GameContext(schema, partition, device, given.model, logits, given.value_function)
    errors = None
    with torch.random.fork_rng(devices=[]):  # New networks draw weights, which those of the file replace.
        saved = SavedNetwork(config["network"], schema, partition, given.network, given.model)
        network = builder_for(schema).saved_explainer(saved).to(device)
        game = restore_game(config["value_function"], with_prefix(tensors, "value_function"), context)
        load_weights(network, with_prefix(tensors, "network"), "network" if given.network is not None else "model")
        if network.leaves is not None:
            network.leaves.check()
        if weights := with_prefix(tensors, "errors"):
            errors = ErrorBars(network)
            load_weights(errors.head, weights, "network")
    parts = (network, getattr(errors, "head", None), getattr(imitation_of(game), "network_", None))
    learnt = [weight for part in parts if isinstance(part, nn.Module) for weight in part.parameters()]
    nulls = [tensor for name, tensor in tensors.items() if name.endswith(".null")]
    _check_finite([*learnt, network.scale, *nulls])
    if not (reference := with_prefix(tensors, "reference")):
        raise FileFormatError(
            "the file was written before explainers kept a reference for check: fit and save it again"
        )
    return Fitted(
        schema,
        partition,
        game,
        network.eval(),
        tuple(config["output_names"]),
        config["losses"],
        errors,
        None if config["report"] is None else Report.from_dict(config["report"]),
        Reference(**{name: reference[name] for name in Reference.__dataclass_fields__}),
        config["normalize"],
    )


def _check_finite(tensors: Iterable[Tensor]) -> None:
    if not all(tensor.isfinite().all() for tensor in tensors):
        raise FileFormatError("the file is damaged: it has weights that are not finite")


@contextmanager
def _naming_damage(where: Any) -> Iterator[None]:
    """Say which file has a configuration or tensors that do not fit together, where something fails on them."""
    try:
        yield
    except FileFormatError as error:
        raise FileFormatError(f"{where}: {error}") from error
    except (InputError, ModelError):  # The objects that the user passed do not fit.
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise FileFormatError(
            f"{where} is damaged, or does not fit the objects that were passed ({type(error).__name__}: {error})"
        ) from error


def _parse(data: bytes, where: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors that `save` wrote."""
    with naming_other_files(where):
        tensors = load_tensors(data)
    return configuration(data, where), tensors


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
