"""The convolutions of the network for images, in the form that the device computes fastest."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tddelta.errors import ConfigError

Channels = Literal["auto", "first", "last"]
"""Which axis of an image holds its channels."""

LAYERS = ((32, 8, 4), (64, 4, 2), (32, 3, 1))
"""Filters, size and stride of each layer: those of Romoff et al. 2019."""


class Images(NamedTuple):
    """What observations are as images.

    Attributes:
        channels_first: Whether they are (C, H, W), else (H, W, C).
        size: (H, W, C).
        largest: What a full pixel is; the network sees shares of it.
    """

    channels_first: bool
    size: tuple[int, int, int]
    largest: float

    @property
    def features(self) -> int:
        """Numbers that the last layer gives."""
        height, width, _ = self.size
        for _, size, stride in LAYERS:
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
        return height * width * LAYERS[-1][0]


def images_of(space: Any, channels: Channels) -> Images:
    """Tell the axis of the channels, and the range of the pixels.

    Args:
        space: Of the observations.
        channels: "auto" takes the first or last axis, whichever is smaller; the other words say it. Grey images of two
            axes have none.

    Raises:
        ConfigError: If these are no images of at least 36×36, or either axis could hold the channels.
    """
    given = tuple(space.shape)
    shape = (*given, 1) if len(given) == 2 else given
    if len(shape) != 3:
        raise ConfigError(
            f"nature-conv needs images (height, width), (channels, height, width) or (height, width, channels); got "
            f"{shape}: use network mlp"
        )
    if len(given) == 2:
        channels = "last"
    if channels == "auto" and shape[0] == shape[-1]:
        raise ConfigError(
            f"either end of {shape} could be the channels of the image: set image_channels to first or last"
        )
    first = shape[0] < shape[-1] if channels == "auto" else channels == "first"
    height, width, count = (*shape[1:], shape[0]) if first else shape
    if min(height, width) < 36:
        raise ConfigError(f"nature-conv needs images of at least 36×36 pixels; got {given}: use network mlp")
    whole = np.dtype(space.dtype) == np.uint8
    return Images(first, (height, width, count), 255.0 if whole else 1.0)


def is_image(space: Any) -> bool:
    """Whether `images_of` takes a space for images without being told their axes."""
    try:
        images_of(space, "auto")
    except ConfigError:
        return False
    return True


class ImageConvolutions(eqx.Module):
    """Three convolutions.

    Attributes:
        filters: Of each layer, (filters, channels, size, size).
        biases: (filters,).
        images: What the observations are.
    """

    filters: tuple[jax.Array, ...]
    biases: tuple[jax.Array, ...]
    images: Images = eqx.field(static=True)

    def __init__(self, key: jax.Array, images: Images):
        orthogonal, made, channels = jax.nn.initializers.orthogonal(math.sqrt(2)), [], images.size[-1]
        for layer_key, (filters, size, _) in zip(jax.random.split(key, len(LAYERS)), LAYERS, strict=True):
            weight = orthogonal(layer_key, (channels * size * size, filters)).T
            made.append(weight.reshape(filters, channels, size, size))
            channels = filters
        self.filters = tuple(made)
        self.biases = tuple(jnp.zeros(filters) for filters, _, _ in LAYERS)
        self.images = images

    def __call__(self, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Features (H, W, C) of one observation."""
        if self.images.channels_first:
            x = jnp.moveaxis(x, 0, -1)
        x = x.reshape(self.images.size)  # grey images may have no axis of channels
        x = x.astype(self.filters[0].dtype) / self.images.largest
        for weight, bias, (_, _, stride) in zip(self.filters, self.biases, LAYERS, strict=True):
            x = activation(convolved(x, weight, stride) + bias)
        return x


def convolved(x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """A convolution without padding: (H, W, C), (F, C, K, K) → (H′, W′, F)."""
    found: jax.Array = jax.lax.platform_dependent(
        x,
        weight,
        cpu=lambda x, weight: by_patches(x, weight, stride),
        default=lambda x, weight: natively(x, weight, stride),
    )
    return found


def natively(x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """The convolution of XLA, which is fast on a GPU."""
    layout = ("NHWC", "OIHW", "NHWC")
    found: jax.Array = jax.lax.conv_general_dilated(
        x[None], weight, (stride, stride), "VALID", dimension_numbers=layout
    )
    return found[0]


def by_patches(x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """The same as patches and a matrix product, which is several times faster to train in XLA on a CPU.

    Args:
        x: (H, W, C).
        weight: (F, C, K, K).
        stride: A divisor of K, so that a patch is made of K/stride × K/stride blocks.
    """
    filters, channels, size, _ = weight.shape
    height, width, _ = x.shape
    blocks = size // stride
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    x = x[: (rows + blocks - 1) * stride, : (columns + blocks - 1) * stride]
    if stride > 1:
        x = x.reshape(rows + blocks - 1, stride, columns + blocks - 1, stride, channels).transpose(0, 2, 1, 3, 4)
        x = x.reshape(rows + blocks - 1, columns + blocks - 1, stride * stride * channels)
    # Without the barriers the compiler would look up every entry of a patch on its own.
    x = jax.lax.optimization_barrier(x)
    shifted = [x[i : i + rows, j : j + columns] for i in range(blocks) for j in range(blocks)]
    x = jax.lax.optimization_barrier(jnp.concatenate(shifted, axis=-1))
    weight = weight.reshape(filters, channels, blocks, stride, blocks, stride).transpose(0, 2, 4, 3, 5, 1)
    return x @ weight.reshape(filters, -1).T
