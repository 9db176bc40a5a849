"""Banks of runs: the model that an experiment has learned, and the data its tasks are made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._prior import Prior
from .._types import Data
from ..experiments import find_experiment
from ..runs import checkpoint
from ..runs.folder import read_json
from ..runs.kept import Kept
from ..runs.meta import Setup, draw
from .bank import Bank
from .delta import Compression
from .errors import BankError
from .posterior import Structure


def bank_from_run(
    run: Path,
    path: Path,
    *,
    modules: Sequence[str] = (),
    seed: int = 0,
    compression: Compression | None = None,
    posterior: Structure | None = None,
) -> Bank:
    """A bank around what the finished run in `run` has learned.

    `modules` are those the run has selected by default, `["all"]` is all of them; `seed` counts the runs that were
    trained together from 0.
    """
    config = read_json(run / "config.json")
    if not (run / "result.json").exists():
        raise BankError(f"{run} is not finished; go on with it by `shrinx run ... --resume`.")
    result = read_json(run / "result.json")
    if not 0 <= seed < config["seeds"]:
        raise BankError(f"{run} has seeds 0 to {config['seeds'] - 1}, there is no {seed}.")
    model = {key: config[key] for key in ("experiment", "algorithm", "preset", "config")}
    experiment = find_experiment(model["experiment"]).module
    if hasattr(experiment, "learned"):
        if posterior is not None:
            raise BankError(f"Banks of {model['experiment']} keep no posteriors: its tasks are too large for one.")
        prior, more = experiment.learned(config_of_model(model), run, result)
        model |= more
    else:
        prior = _kept_prior(run, setup_of_model(model), config["seeds"], seed)
    chosen = modules or [module["name"] for module in result["modules"] if module["selected"]]
    if list(chosen) == ["all"]:
        chosen = prior.modules.names
    if not chosen:
        raise BankError(f"{run} has selected no modules: name those that tasks may change, or all, with --modules.")
    return Bank.create(path, prior, chosen, compression=compression, posterior=posterior, model=model)


def _kept_prior(run: Path, setup: Setup, seeds: int, seed: int) -> Prior:
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    like = jax.vmap(lambda key: Kept.begin(setup.learner, setup.init(key)))(keys)
    restored = checkpoint.restore(run / "checkpoints", like)
    if restored is None:
        raise BankError(f"{run} has no checkpoint to take the model from; run it again.")
    return jax.tree.map(lambda leaf: leaf[seed], restored[1].prior)


def setup_of(bank: Bank) -> Setup:
    """Loss and solver of the experiment whose model is in the bank."""
    if bank.model is None:
        raise BankError(
            f"The bank in {bank.path} was not made from a run, and does not say which loss its tasks are adapted with: "
            "adapt them in Python, with `shrinx.adapt_task`."
        )
    return setup_of_model(bank.model)


def read_data(path: Path, setup: Setup, num_tasks: int | None) -> Data:
    """The data of one task, or of `num_tasks` along a leading axis, from a file of arrays (npz)."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise BankError(f"{path} does not exist.") from None
    except Exception as error:  # zipfile, zlib and numpy raise a dozen different things for a broken file.
        raise BankError(f"{path} is no file of arrays; write one with `numpy.savez`.") from error
    split = None if setup.split is None else jax.tree.map(jnp.asarray, setup.split(0))
    expected = jax.eval_shape(lambda key: draw(setup.test_tasks, key, split), jax.random.key(0)).support
    if num_tasks is None:
        expected = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), expected)
    leaves, treedef = jax.tree.flatten(expected)
    names = _names(expected)
    if set(names) != set(arrays):
        raise BankError(
            f"{path} holds the arrays {sorted(arrays)}; the experiment's tasks are made of {sorted(names)}."
        )
    # The axes of tasks and of points may have any length.
    free = 1 if num_tasks is None else 2
    for name, leaf in zip(names, leaves, strict=True):
        shape = arrays[name].shape
        if len(shape) != leaf.ndim or shape[free:] != leaf.shape[free:]:
            raise BankError(f"{path} has an array '{name}' of shape {shape}; expected one like {leaf.shape}.")
        if not _keeps_its_values(arrays[name], leaf.dtype):
            raise BankError(
                f"{path} has an array '{name}' of {arrays[name].dtype} with values that {leaf.dtype} cannot hold, "
                "which the experiment's tasks are made of; write it as the experiment's data are, on the same scale."
            )
    # What is of one length in the experiment, such as the x and y of its points, is so here.
    lengths = {(leaf.shape[:free], arrays[name].shape[:free]) for name, leaf in zip(names, leaves, strict=True)}
    if len(lengths) > len({expected for expected, _ in lengths}):
        shapes = ", ".join(f"'{name}' {arrays[name].shape}" for name in names)
        raise BankError(f"{path} has arrays of different lengths: {shapes}.")
    return treedef.unflatten([jnp.asarray(arrays[name], leaf.dtype) for name, leaf in zip(names, leaves, strict=True)])


def setup_of_model(model: dict[str, Any]) -> Setup:
    """The experiment that made the model, as a bank remembers it."""
    return find_experiment(model["experiment"]).module.setup(config_of_model(model))


def config_of_model(model: dict[str, Any]) -> Any:
    """The configuration of the run that made the model."""
    kind = type(find_experiment(model["experiment"]).config(model["algorithm"], model["preset"]))
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in model["config"].items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise BankError(
            f"The settings of {model['experiment']} are those of another shrinx version ({error})."
        ) from error


def _keeps_its_values(array: np.ndarray, dtype: Any) -> bool:
    """But for rounding, if it becomes an array of floats."""
    if np.iscomplexobj(array) or not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        return False
    with np.errstate(invalid="ignore", over="ignore"):  # Of NaN there is no whole number.
        kept = array.astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array_equal(np.isfinite(kept), np.isfinite(array))
    return np.array_equal(kept, array)


def _names(data: Data) -> list[str]:
    """What the arrays are called in a file: keys of a dictionary, x and y of a pair."""
    if isinstance(data, dict):
        return sorted(data)
    return {1: ["x"], 2: ["x", "y"]}[len(jax.tree.leaves(data))]
