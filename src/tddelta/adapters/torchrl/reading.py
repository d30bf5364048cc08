"""Entries of a tensordict at the door: whether they are there, and fit the shape of the components."""

from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection

from tddelta.errors import DataError, ShapeError

_ADVICE = "add it, or name another one with set_keys"


def check_data(data: Any) -> None:
    """DataError unless this is a tensordict."""
    if not is_tensor_collection(data) or isinstance(data, type):
        raise DataError(
            f"the data must be a TensorDict; got {type(data).__name__}: pass what a collector or a rollout returns, "
            "or make one with TensorDict(entries, batch_size)"
        )


def entry(data: TensorDictBase, key: Any, advice: str = _ADVICE) -> torch.Tensor:
    """What the data has under a key.

    Args:
        data: The data.
        key: The key, nested or not.
        advice: What the message says to do if there is nothing.

    Returns:
        The tensor.

    Raises:
        DataError: There is nothing; the message lists the keys.
    """
    found: torch.Tensor | None = data.get(key, None)
    if found is None:
        raise DataError(
            f"the data has no entry {key!r}; got {sorted(map(str, data.keys(include_nested=True, leaves_only=True)))}: "
            f"{advice}"
        )
    return found


def of_the_step(data: TensorDictBase, key: Any, deltas: torch.Tensor, *, flag: bool = False) -> torch.Tensor:
    """A reward or a flag of the step, from under "next".

    Args:
        data: The data.
        key: The key there.
        deltas: The components, (*batch, Z).
        flag: Whether it must be boolean.

    Returns:
        The tensor without its last axis of length 1, (*batch,).

    Raises:
        DataError: There is nothing.
        ShapeError: The shape is not (*batch, 1), or the dtype of a flag is not boolean.
    """
    found = entry(data, ("next", key))
    wanted, got = (*deltas.shape[:-1], 1), tuple(found.shape)
    if got != wanted:
        advice = "use unsqueeze(-1)" if got == wanted[:-1] else "expand or reduce it, nothing is broadcast"
        raise ShapeError(
            f"('next', {key!r}) must have the shape {wanted} beside components of shape {tuple(deltas.shape)}; "
            f"got {got}: {advice}"
        )
    if flag and found.dtype != torch.bool:
        raise ShapeError(f"('next', {key!r}) must be boolean; got dtype {found.dtype}: cast it, say what it means")
    return found.squeeze(-1)


def check_components(data: TensorDictBase, key: Any, deltas: torch.Tensor, number: int) -> None:
    """ShapeError unless the components have one entry per scale.

    Args:
        data: The data.
        key: Their key, for the message.
        deltas: The components, (*batch, Z).
        number: The number of scales.
    """
    shape = tuple(deltas.shape)
    if deltas.ndim <= data.ndim or shape[-1] != number:
        raise ShapeError(
            f"{key!r} must have the shape of the batch, {tuple(data.shape)}, and one entry for each of the {number} "
            f"scales; got {shape}: give the critic's last layer out_features={number}, or pass other scales"
        )


def check_single_steps(data: TensorDictBase, key: Any) -> None:
    """DataError if rewards are sums over several steps.

    Args:
        data: The data.
        key: Where a multi-step transform writes how many steps it has summed.
    """
    lengths = data.get(key, None)
    if lengths is not None and bool((lengths != 1).any()):
        raise DataError(
            f"rewards must be those of single steps; got {key!r} up to {int(lengths.max())}: drop the multi-step "
            "transform, which sums rewards with one discount and so spoils them for all others"
        )
