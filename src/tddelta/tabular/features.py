"""Features for linear values that need no coordinates."""

from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt

from tddelta.errors import ConfigError, own_checks


@own_checks
def one_hot(labels: Iterable[Hashable]) -> npt.NDArray[np.float64]:
    """Feature matrix with one feature per label: states of one label share their value (state aggregation).

    Labels of their own make a table, `one_hot(range(S))`.

    Args:
        labels: Group of every state, anything hashable, S of them.

    Returns:
        Matrix of 0 and 1, shape (S, F), one column per label in the order of first appearance.

    Raises:
        ConfigError: The labels are no sequence, or one of them is not hashable.

    Example:
        >>> one_hot(["left", "left", "right"])
        array([[1., 0.],
               [1., 0.],
               [0., 1.]])
    """
    try:
        groups = list(labels)
        order = {label: column for column, label in enumerate(dict.fromkeys(groups))}
    except TypeError as error:
        raise ConfigError(
            f"labels must be one hashable label per state; got {labels!r:.80} ({error}): "
            "pass a list of numbers, texts or tuples"
        ) from None
    return np.eye(len(order))[[order[label] for label in groups]]
