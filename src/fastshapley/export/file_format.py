"""One file: safetensors, with the configuration as JSON in its metadata. Loading never executes anything."""

from __future__ import annotations

import copy
import io
import json
import os
from dataclasses import asdict, replace
from numbers import Integral
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as serialize_tensors
from safetensors.torch import save_file
from torch import Tensor, nn

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.players import Groups, Partition, Superpixels
from fastshapley.data.table_schema import Schema
from fastshapley.errors import FileFormatError, InputError
from fastshapley.fit.fitted import Fitted
from fastshapley.fit.settings import NAMED
from fastshapley.networks.convolutional import Backbone, BackboneMaps, MapsOf, MaskedImages, UNetMaps
from fastshapley.networks.mlp import ExplainerNetwork, MaskedNetwork, Perceptron, PlayerPerceptron, TableEncoder
from fastshapley.support.atomic_files import write_atomically
from fastshapley.training.loop import Training
from fastshapley.training.recipes import Layers, Recipe, Targets
from fastshapley.trust.drift import Reference
from fastshapley.trust.error_bars import ErrorBars
from fastshapley.trust.report import Report
from fastshapley.value_functions import Baseline, Marginal, Missing, Removal, Surrogate
from fastshapley.version import __version__

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

FORMAT = 2  # which also holds images; 1 had tables alone
_KEY = "fastshapley"
_LONGEST = 100_000_000  # header that safetensors reads
_PIECE = 1 << 20  # bytes that are asked of a stream at once
_REMOVALS: dict[str, type[Removal]] = {"marginal": Marginal, "baseline": Baseline, "missing": Missing}


def save(explainer: FastSHAP, path: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write a fitted explainer, to a stream or a file; the latter is replaced only once the new one is complete."""
    network = explainer.network_
    game, game_tensors = describe_game(explainer.value_function_)
    recipe = explainer.recipe
    report = explainer.report_
    config = {
        "format": FORMAT,
        "version": __version__,
        "schema": explainer.schema_.to_dict(),
        "players": asdict(explainer.partition_),
        "output_names": explainer.output_names_,
        "network": {
            "encoder": network.encoder.config if isinstance(network.encoder, TableEncoder) else None,
            "layers": _layers(network.body),
            "players": network.players,
            "outputs": network.outputs,
            "classes": network.classes,
        },
        "value_function": game,
        "link": game.get("link", explainer.link),
        "logits": explainer.logits,
        "normalize": explainer.normalize_,
        "penalty": float(explainer.penalty),
        "random_state": int(explainer.random_state) if isinstance(explainer.random_state, Integral) else None,
        "losses": explainer.losses_,
        "recipe": asdict(recipe) if isinstance(recipe, Recipe) else recipe,
        "report": None if report is None else report.to_dict(),
    }
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"value_function.{name}": tensor for name, tensor in game_tensors.items()}
    if explainer.errors_ is not None:
        tensors |= {f"errors.{name}": tensor for name, tensor in explainer.errors_.head.state_dict().items()}
    tensors |= {f"reference.{name}": tensor for name, tensor in vars(explainer.reference_).items()}
    # clones: a module may have a layer by two names, and safetensors wants each number once
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {_KEY: json.dumps(config)}
    if isinstance(path, str | os.PathLike):
        write_atomically(Path(path), lambda temporary: save_file(tensors, temporary, metadata))
    else:
        _check_binary(path)
        path.write(serialize_tensors(tensors, metadata))


def load(
    cls: type[FastSHAP],
    path: str | os.PathLike[str] | IO[bytes],
    model: Any,
    network: nn.Module | Backbone | None,
    value_function: Any,
    device: str | torch.device | None,
) -> FastSHAP:
    """The explainer in a file or a stream."""
    where = path if isinstance(path, str | os.PathLike) else "the stream"
    config, tensors = _parse(_read(path), where)
    explainer = cls(
        model,
        link=config["link"],
        logits=config.get("logits", False),
        normalize=config["normalize"],
        penalty=config["penalty"],
        recipe=_recipe(config["recipe"]),
        random_state=config.get("random_state"),
        network=network,
        device=device,
    )
    place = explainer._settings().resolved_device()
    tensors = {name: tensor.to(place) for name, tensor in tensors.items()}
    images = "images" in config["schema"]
    schema = ImageSchema.from_dict(config["schema"]) if images else Schema.from_dict(config["schema"])
    partition = _partition(config["players"])
    explainer.players = _players(partition, schema)
    with torch.random.fork_rng(devices=[]):  # new networks draw weights, which the file's then replace
        built = _build_network(config["network"], network, schema, partition, model).to(place)
        game = build_game(
            config["value_function"],
            _part(tensors, "value_function"),
            schema,
            partition,
            model,
            value_function,
            place,
            logits=explainer.logits,
        )
    explainer.value_function = _setting(config["value_function"]["kind"], value_function)
    _load_weights(built, _part(tensors, "network"), "network" if network is not None else "model")
    errors = None
    if weights := _part(tensors, "errors"):
        with torch.random.fork_rng(devices=[]):
            errors = ErrorBars(built)
        _load_weights(errors.head, weights, "network")
    if not (reference := _part(tensors, "reference")):
        raise FileFormatError(
            f"{where} was written before explainers kept a reference for check: fit and save it again"
        )
    report = None if config["report"] is None else Report(**config["report"])
    names = tuple(config["output_names"])
    kept = Reference(**reference)
    return explainer._keep(
        Fitted(
            schema,
            partition,
            game,
            built.eval(),
            names,
            config["losses"],
            errors,
            report,
            kept,
            config["normalize"],
        )
    )


def read_config(path: Path) -> dict[str, Any]:
    """What a file says of itself: all but the numbers of networks. No model is needed for it."""
    return _parse(_read(path), path)[0]


def _read(file: str | os.PathLike[str] | IO[bytes]) -> bytes:
    """All of a file; of a stream, as much as `save` wrote, so that others may follow in it."""
    if not isinstance(file, str | os.PathLike):
        _check_binary(file)
        start = _exactly(file, 8)
        header = _exactly(file, min(int.from_bytes(start, "little"), _LONGEST))
        return start + header + _exactly(file, _size(header))
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file that FastSHAP.save wrote")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return path.read_bytes()


def _exactly(file: IO[bytes], size: int) -> bytes:
    """So many bytes, or all that there are: a pipe gives some at a time, and a damaged header asks for too many."""
    parts: list[bytes] = []
    while size > 0 and (part := file.read(min(size, _PIECE))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_binary(file: Any) -> None:
    if isinstance(file, io.TextIOBase) or not (hasattr(file, "read") or hasattr(file, "write")):
        raise InputError(
            f"path is {file!r}: pass a path, or a file that is open for bytes, as open(path, 'rb') has it"
        )


def _size(header: bytes) -> int:
    """How many bytes of tensors follow safetensors' header; none, if it is no such header."""
    try:
        return max(
            int(entry["data_offsets"][1]) for name, entry in json.loads(header).items() if name != "__metadata__"
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0


def _parse(data: bytes, where: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors that `save` wrote."""
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        if str(where).endswith(".onnx"):
            raise FileFormatError(f"{where} is a graph, for serve and page: pass the file it was made of") from None
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


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}


def _partition(config: dict[str, Any]) -> Partition:
    return Partition(**{name: tuple(value) if isinstance(value, list) else value for name, value in config.items()})


def _players(partition: Partition, schema: Schema | ImageSchema) -> Groups | Superpixels | None:
    """The players as a user would write them."""
    if partition.grid is not None:
        return Superpixels(partition.grid, fill=partition.fill)
    if partition.shape:
        return Superpixels(segmentation=np.reshape(partition.owner, partition.shape[1:]), fill=partition.fill)
    assert isinstance(schema, Schema)
    members = {name: [schema.names[j] for j in partition.members(i)] for i, name in enumerate(partition.names)}
    groups = {name: columns for name, columns in members.items() if columns != [name]}
    return Groups(groups) if groups else None


def _load_weights(network: nn.Module, weights: dict[str, Tensor], argument: str) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise FileFormatError(f"{argument} is not the network that the file has weights of: {error}") from error


def _layers(body: nn.Module) -> dict[str, Any] | None:
    """The sizes of a body of ours; None for a module of the user's."""
    return body.config if isinstance(body, Perceptron | PlayerPerceptron | BackboneMaps | UNetMaps) else None


def _body(layers: dict[str, Any] | None, given: nn.Module | None, argument: str) -> nn.Module:
    if layers is not None:
        return PlayerPerceptron(**layers) if "owner" in layers else Perceptron(**layers)
    if given is None:
        raise FileFormatError(f"the file holds only the weights of a network of your own: pass it as {argument}=")
    return copy.deepcopy(given)


def _build_network(
    config: dict[str, Any],
    given: nn.Module | Backbone | None,
    schema: Schema | ImageSchema,
    players: Partition,
    model: Any,
) -> ExplainerNetwork:
    layers, encoder, body = config["layers"], cast(nn.Module, nn.Identity()), cast(nn.Module, given)
    outputs = ExplainerNetwork.body_outputs(config["players"], config["outputs"], config["classes"])
    if isinstance(schema, Schema):
        encoder, body = TableEncoder(**config["encoder"]), _body(layers, body, "network")
    elif layers is None:
        body = MapsOf(_body(None, body, "network"), players)
    elif "backbone" not in layers:
        body = UNetMaps(**layers, players=players)
    else:
        given = given if isinstance(given, Backbone) else Backbone()
        if not isinstance(given.network or model, nn.Module):
            raise FileFormatError("the explainer is made of your model's own layers: pass the model as model=")
        backbone = replace(given, layers=layers["backbone"], width=layers["width"])
        try:
            body = backbone.build(model, players, outputs // config["players"], torch.zeros(1, *schema.shape))
        except Exception as error:  # whatever another network raises
            raise FileFormatError(f"the network is not the one that the file has weights of: {error}") from error
    return ExplainerNetwork(encoder, body, config["players"], config["outputs"], config["classes"])


def describe_game(game: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `build_game` makes a game from: a configuration for JSON, and tensors."""
    if isinstance(game, Surrogate):
        network = game.network_
        config: dict[str, Any] = {"kind": "surrogate", "scale": game.scale, "link": game.link}
        if isinstance(network, MaskedNetwork):
            layers = _layers(network.body)
            config |= {"encoder": network.encoder.config, "layers": layers, "owner": network.owner}
        else:
            config |= {"inverse": network.inverse}
        tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
        nulls = {"null": game.null, "model_null": game.model_null}
        return config, {**tensors, "shift": game.shift_, "spread": game.spread_, **nulls}
    if isinstance(game, Removal):
        kind = next(name for name, cls in _REMOVALS.items() if isinstance(game, cls))
        return {"kind": kind, "scale": game.scale, "link": game.link}, {"rows": game.rows_, "null": game.null}
    return {"kind": "custom"}, {}


def build_game(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    schema: Schema | ImageSchema,
    partition: Partition,
    model: Any,
    given: Any,
    device: torch.device,
    *,
    logits: bool = False,
) -> Any:
    """The game of a configuration and its tensors; ``given`` is one of the user's own, which a file cannot hold."""
    if config["kind"] == "surrogate":
        network = _surrogate_network(config, partition, model, given).to(device)
        _load_weights(network, _part(tensors, "network"), "model" if given is None else "value_function")
        return Surrogate().restore(
            network,
            config["scale"],
            config["link"],
            schema,
            partition,
            tensors["shift"],
            tensors["spread"],
            tensors["null"],
            tensors.get("model_null", tensors["null"]),
        )
    if config["kind"] in _REMOVALS:
        rows = tensors["rows"]
        function = None if model is None else ModelFunction(model, schema, rows, logits)
        game = _REMOVALS[config["kind"]]()
        return game.restore(function, rows, schema, partition, config["link"], tensors["null"], config["scale"])
    if given is None:
        raise FileFormatError("the explainer's value function is an object of your own: pass it as value_function=")
    return given


def _setting(kind: str, given: Any) -> Any:
    """The value function as a user writes it: an explainer that is fitted again learns a game of its own."""
    if isinstance(given, nn.Module):
        return Surrogate(given)
    return given if given is not None else kind if kind in NAMED else _REMOVALS[kind]()


def _surrogate_network(
    config: dict[str, Any], players: Partition, model: Any, given: Any
) -> MaskedNetwork | MaskedImages:
    if "inverse" not in config:
        encoder = TableEncoder(**config["encoder"])
        return MaskedNetwork(encoder, config["owner"], _body(config["layers"], given, "value_function"))
    body = model if given is None else given
    if not isinstance(body, nn.Module):
        raise FileFormatError(
            "the file holds the surrogate's weights, but its layers are your model's: pass that as model=, or as "
            "value_function= if the surrogate was another network"
        )
    return MaskedImages(copy.deepcopy(body), players, config["inverse"])


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
