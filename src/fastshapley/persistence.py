"""One file: safetensors, with the configuration as JSON in its metadata. Loading never executes anything."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fastshapley.checkpoints import write_atomically
from fastshapley.errors import FileFormatError
from fastshapley.models import ModelFunction
from fastshapley.networks.mlp import ExplainerNetwork, MaskedNetwork, Perceptron, PlayerPerceptron, TableEncoder
from fastshapley.players import Groups, Partition
from fastshapley.recipes import Layers, Recipe, Targets
from fastshapley.report import Report
from fastshapley.schema import Schema
from fastshapley.training import Training
from fastshapley.value_functions import Baseline, Marginal, Missing, Removal, Surrogate
from fastshapley.version import __version__

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

FORMAT = 1
_KEY = "fastshapley"
_REMOVALS: dict[str, type[Removal]] = {"marginal": Marginal, "baseline": Baseline, "missing": Missing}


def save(explainer: FastSHAP, path: str | os.PathLike[str]) -> None:
    """Write a fitted explainer; an existing file is replaced only once the new one is complete."""
    network = explainer.network_
    game, game_tensors = describe_game(explainer.value_function_)
    recipe = explainer.recipe
    report = explainer.report_
    config = {
        "format": FORMAT,
        "version": __version__,
        "schema": explainer.schema_.to_dict(),
        "players": {"names": explainer.partition_.names, "owner": explainer.partition_.owner},
        "output_names": explainer.output_names_,
        "network": {
            "encoder": network.encoder.config,
            "layers": _layers(network.body),
            "players": network.players,
            "outputs": network.outputs,
            "classes": network.classes,
        },
        "value_function": game,
        "link": game.get("link", explainer.link),
        "normalize": explainer.normalize_,
        "penalty": float(explainer.penalty),
        "losses": explainer.losses_,
        "recipe": asdict(recipe) if isinstance(recipe, Recipe) else recipe,
        "report": None if report is None else report.to_dict(),
    }
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"value_function.{name}": tensor for name, tensor in game_tensors.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {_KEY: json.dumps(config)}
    write_atomically(Path(path), lambda temporary: save_file(tensors, temporary, metadata))


def load(
    cls: type[FastSHAP],
    path: str | os.PathLike[str],
    model: Any,
    network: nn.Module | None,
    value_function: Any,
    device: str | torch.device | None,
) -> FastSHAP:
    """The explainer in a file."""
    config, tensors = _read(Path(path))
    explainer = cls(
        model,
        link=config["link"],
        normalize=config["normalize"],
        penalty=config["penalty"],
        recipe=_recipe(config["recipe"]),
        network=network,
        device=device,
    )
    place = explainer._device()
    tensors = {name: tensor.to(place) for name, tensor in tensors.items()}
    schema = Schema.from_dict(config["schema"])
    partition = Partition(tuple(config["players"]["names"]), tuple(config["players"]["owner"]))
    if len(partition) < len(partition.owner):
        members = {name: partition.members(i) for i, name in enumerate(partition.names)}
        explainer.players = Groups({name: columns for name, columns in members.items() if len(columns) > 1})
    with torch.random.fork_rng(devices=[]):  # new networks draw weights, which the file's then replace
        built = _build_network(config["network"], network, place)
        game = build_game(
            config["value_function"],
            _part(tensors, "value_function"),
            schema,
            partition,
            model,
            value_function,
            place,
        )
    explainer.value_function = game
    built.load_state_dict(_part(tensors, "network"))
    explainer._set_fitted(schema, partition, game, built.eval(), tuple(config["output_names"]))
    explainer.losses_ = config["losses"]
    explainer.report_ = None if config["report"] is None else Report(**config["report"])
    return explainer


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file that FastSHAP.save wrote")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _KEY not in metadata:
                raise FileFormatError(f"{path} is a safetensors file, but not one that FastSHAP.save wrote")
            config: dict[str, Any] = json.loads(metadata[_KEY])
            if config["format"] > FORMAT:
                raise FileFormatError(
                    f"{path} was written by fastshapley {config['version']} in format {config['format']}; this is "
                    f"{__version__}, which reads formats up to {FORMAT}: upgrade fastshapley"
                )
            return config, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no dict)
    except SafetensorError as error:
        raise FileFormatError(f"{path} is cut short, damaged or not an explainer file ({error})") from error


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}


def _layers(body: nn.Module) -> dict[str, Any] | None:
    """The sizes of a body of ours; None for a module of the user's."""
    return body.config if isinstance(body, Perceptron | PlayerPerceptron) else None


def _body(layers: dict[str, Any] | None, given: nn.Module | None, argument: str) -> nn.Module:
    if layers is not None:
        return PlayerPerceptron(**layers) if "owner" in layers else Perceptron(**layers)
    if given is None:
        raise FileFormatError(f"the file holds only the weights of a network of your own: pass it as {argument}=")
    return copy.deepcopy(given)


def _build_network(config: dict[str, Any], given: nn.Module | None, device: torch.device) -> ExplainerNetwork:
    body = _body(config["layers"], given, "network")
    encoder = TableEncoder(**config["encoder"])
    return ExplainerNetwork(encoder, body, config["players"], config["outputs"], config["classes"]).to(device)


def describe_game(game: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `build_game` makes a game from: a configuration for JSON, and tensors."""
    if isinstance(game, Surrogate):
        network = game.network_
        config = {
            "kind": "surrogate",
            "encoder": network.encoder.config,
            "layers": _layers(network.body),
            "owner": network.owner,
            "scale": game.scale,
            "link": game.link,
        }
        tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
        return config, {**tensors, "shift": game.shift_, "spread": game.spread_, "null": game.null}
    if isinstance(game, Removal):
        kind = next(name for name, cls in _REMOVALS.items() if isinstance(game, cls))
        return {"kind": kind, "scale": game.scale, "link": game.link}, {"rows": game.rows_, "null": game.null}
    return {"kind": "custom"}, {}


def build_game(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    schema: Schema,
    partition: Partition,
    model: Any,
    given: Any,
    device: torch.device,
) -> Any:
    """The game of a configuration and its tensors; ``given`` is one of the user's own, which a file cannot hold."""
    if config["kind"] == "surrogate":
        encoder = TableEncoder(**config["encoder"])
        body = _body(config["layers"], given, "value_function")
        network = MaskedNetwork(encoder, config["owner"], body).to(device)
        network.load_state_dict(_part(tensors, "network"))
        return Surrogate().restore(
            network,
            config["scale"],
            config["link"],
            schema,
            partition,
            tensors["shift"],
            tensors["spread"],
            tensors["null"],
        )
    if config["kind"] in _REMOVALS:
        rows = tensors["rows"]
        function = None if model is None else ModelFunction(model, schema, rows)
        game = _REMOVALS[config["kind"]]()
        return game.restore(function, rows, schema, partition, config["link"], tensors["null"], config["scale"])
    if given is None:
        raise FileFormatError("the explainer's value function is an object of your own: pass it as value_function=")
    return given


def _recipe(config: Any) -> Any:
    if isinstance(config, str):
        return config
    return Recipe(
        **{
            **config,
            "surrogate": tuple(Training(**stage) for stage in config["surrogate"]),
            "explainer": Training(**config["explainer"]),
            "surrogate_layers": Layers(**config["surrogate_layers"]),
            "explainer_layers": Layers(**config["explainer_layers"]),
            "targets": None if config["targets"] is None else Targets(**config["targets"]),
        }
    )
