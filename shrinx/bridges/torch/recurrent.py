"""LSTM, GRU and plain recurrent networks: one `lax.scan` per layer and direction."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .functions import product
from .layers import DROPOUT

State: TypeAlias = tuple[Array, ...]
Cell: TypeAlias = Callable[[State, Array, Array], State]
"""The next state from the last one and what the input and the last output contribute to the gates."""


def _lstm_cell(state: State, from_input: Array, from_output: Array) -> State:
    in_, forget, new, out = jnp.split(from_input + from_output, 4, axis=-1)
    cell = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(in_) * jnp.tanh(new)
    return jax.nn.sigmoid(out) * jnp.tanh(cell), cell


def _gru_cell(state: State, from_input: Array, from_output: Array) -> State:
    (reset, update, new), (reset_, update_, new_) = (jnp.split(x, 3, axis=-1) for x in (from_input, from_output))
    keep = jax.nn.sigmoid(update + update_)
    candidate = jnp.tanh(new + jax.nn.sigmoid(reset + reset_) * new_)
    return ((1 - keep) * candidate + keep * state[0],)


def _plain_cell(activation: Callable[[Array], Array], state: State, from_input: Array, from_output: Array) -> State:
    return (activation(from_input + from_output),)


def _sweep(
    cell: Cell, x: Array, start: State, weights: Sequence[Array], has_biases: bool, reverse: bool
) -> tuple[State, Array]:
    """One layer in one direction, time first: its last state and all outputs."""
    to_input, to_output, *rest = weights
    bias, output_bias = rest[:2] if has_biases else (0, 0)
    project = rest[2 * has_biases :]  # An LSTM may have a smaller output than state.

    def step(state: State, from_input: Array) -> tuple[State, Array]:
        output, *memory = cell(state, from_input, state[0] @ to_output.T + output_bias)
        output = output @ project[0].T if project else output
        return (output, *memory), output

    return lax.scan(step, start, product(x, to_input.T) + bias, reverse=reverse)


def _layers(
    cell: Cell,
    x: Array,
    start: State,
    weights: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, State]:
    if train and dropout > 0:
        raise ValueError(DROPOUT)
    x = x.swapaxes(0, 1) if batch_first else x
    directions = 1 + bidirectional
    per_sweep = len(weights) // (num_layers * directions)
    last = []
    for layer in range(num_layers):
        outputs = []
        for number in range(layer * directions, (layer + 1) * directions):
            own = weights[number * per_sweep : (number + 1) * per_sweep]
            state, output = _sweep(cell, x, tuple(s[number] for s in start), own, has_biases, number % directions == 1)
            last.append(state)
            outputs.append(output)
        x = jnp.concatenate(outputs, axis=-1)
    return x.swapaxes(0, 1) if batch_first else x, tuple(jnp.stack(states) for states in zip(*last, strict=True))


def lstm(x: Array, start: Sequence[Array], *options: Any) -> tuple[Array, ...]:
    outputs, states = _layers(_lstm_cell, x, tuple(start), *options)
    return outputs, *states


def _one_state(cell: Cell) -> Callable[..., tuple[Array, ...]]:
    def run(x: Array, start: Array, *options: Any) -> tuple[Array, ...]:
        outputs, states = _layers(cell, x, (start,), *options)
        return outputs, *states

    return run


gru = _one_state(_gru_cell)
rnn_tanh = _one_state(functools.partial(_plain_cell, jnp.tanh))
rnn_relu = _one_state(functools.partial(_plain_cell, jax.nn.relu))
