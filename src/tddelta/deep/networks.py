"""Networks with a policy output and the critic's heads.

A network is any `f(key, observation_space, action_space, heads) → eqx.Module` whose call takes ONE observation
(float32) and returns (policy, heads): logits (A,) or (mean, log standard deviation), and `heads` numbers.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tddelta.errors import ConfigError

Channels = Literal["auto", "first", "last"]
"""Axis of an image that holds its channels."""

LAYERS = ((32, 8, 4), (64, 4, 2), (32, 3, 1))
"""Filters, size and stride of each layer: those of Romoff et al. 2019."""


class Images(NamedTuple):
    """Layout of images: whether they are (C, H, W), their size (H, W, C), and a full pixel, whose shares are seen."""

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
    """Tell spaces of images whose axes need not be named."""
    try:
        images_of(space, "auto")
    except ConfigError:
        return False
    return True


class ImageConvolutions(eqx.Module):
    """Three convolutions: filters of each layer, (filters, channels, size, size), and biases, (filters,)."""

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
    forms = {"cpu": functools.partial(by_patches, stride=stride), "default": functools.partial(natively, stride=stride)}
    found: jax.Array = jax.lax.platform_dependent(x, weight, **forms)
    return found


def natively(x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
    """The convolution of XLA, which is fast on a GPU."""
    strides, layout = (stride, stride), ("NHWC", "OIHW", "NHWC")
    return jax.lax.conv_general_dilated(x[None], weight, strides, "VALID", dimension_numbers=layout)[0]


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
    x = jax.lax.optimization_barrier(patches(jax.lax.optimization_barrier(x), blocks))
    weight = weight.reshape(filters, channels, blocks, stride, blocks, stride).transpose(0, 2, 4, 3, 5, 1)
    return x @ weight.reshape(filters, -1).T


def patches(image: jax.Array, size: int) -> jax.Array:
    """All patches of so many rows and columns of an image, flattened: (H, W, C) → (H−size+1, W−size+1, size²·C)."""
    height, width, _ = image.shape
    rows, columns = height - size + 1, width - size + 1
    shifted = [image[i : i + rows, j : j + columns] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=-1)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "swish": jax.nn.swish,
    "gelu": jax.nn.gelu,
}
"""Activations by name."""


class Linear(eqx.Module):
    """x ↦ xWᵀ + b with an orthogonal W of a given gain and b = 0.

    Attributes:
        weight: (outputs, inputs). Stored this way, its gradient gᵀx comes out of the product as it is kept; a CPU is
            slower at xᵀg, which a weight (inputs, outputs) needs.
        bias: (outputs,).
    """

    weight: jax.Array
    bias: jax.Array

    def __init__(self, key: jax.Array, inputs: int, outputs: int, gain: float):
        self.weight = jax.nn.initializers.orthogonal(gain)(key, (inputs, outputs)).T
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layer to (…, inputs)."""
        return x @ self.weight.T + self.bias


class Trunk(eqx.Module):
    """Optional convolutions, a 3×3 one as a layer on patches or those of images, then dense layers.

    An activation, by its name, follows every layer.
    """

    convolution: Linear | ImageConvolutions | None
    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        shape: tuple[int, ...],
        sizes: Sequence[int],
        filters: int | None,
        activation: str,
        images: Images | None = None,
    ):
        keys, gain = jax.random.split(key, len(sizes) + 1), math.sqrt(2)
        width = math.prod(shape)
        self.convolution = None
        if filters is not None:
            height, wide, channels = shape
            self.convolution = Linear(keys[0], 9 * channels, filters, gain)
            width = (height - 2) * (wide - 2) * filters
        if images is not None:
            self.convolution = ImageConvolutions(keys[0], images)
            width = images.features
        widths = (width, *sizes)
        self.layers = tuple(Linear(*one, gain) for one in zip(keys[1:], widths[:-1], sizes, strict=True))
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Features (last size,) of one observation."""
        activation = ACTIVATIONS[self.activation]
        if isinstance(self.convolution, ImageConvolutions):
            x = self.convolution(x, activation)
        elif self.convolution is not None:
            x = activation(self.convolution(patches(x if x.ndim == 3 else x[..., None], 3)))
        x = x.reshape(-1)
        for layer in self.layers:
            x = activation(layer(x))
        return x


class Components(eqx.Module):
    """Heads with a trunk and an output each, arrays (heads, …): each can be learned on a device of its own."""

    trunk: Trunk
    output: Linear

    def __call__(self, observation: jax.Array) -> jax.Array:
        """The heads (heads,) for one observation."""
        heads: jax.Array = jax.vmap(lambda trunk, output: output(trunk(observation))[0])(self.trunk, self.output)
        return heads


def is_components(node: Any) -> bool:
    """Tell where components with trunks of their own stand in a tree of parameters."""
    return isinstance(node, Components)


def one_by_one(make: Callable[[jax.Array], Any], keys: jax.Array) -> Any:
    """Make one of every key, and stack them.

    `jax.vmap` would factorise several matrices at once, and in jaxlib 0.10 two such calls at a time wait for each other
    for ever, when they come from devices or threads that share the few threads of a processor.
    """
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(make, keys))


class ActorCritic(eqx.Module):
    """A trunk for the policy and one for the critic, or a shared one, or one per head, with linear outputs.

    Attributes:
        policy_trunk: Features of the policy (of both, if shared).
        critic_trunk: Features of the critic, or None if the trunk is shared or every head has its own.
        policy: Logits or means.
        log_deviation: State-independent log standard deviation (D,) of a Gaussian policy, or None.
        critic: The heads; with their trunks if every head has its own.
        action_shape: Shape of one action of a Gaussian policy, () for a categorical one.
    """

    policy_trunk: Trunk
    critic_trunk: Trunk | None
    policy: Linear
    log_deviation: jax.Array | None
    critic: Linear | Components
    action_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        observation_space: Any,
        action_space: Any,
        heads: int,
        *,
        sizes: Sequence[int] = (64, 64),
        filters: int | None = None,
        image_channels: Channels | None = None,
        activation: str = "tanh",
        shared: bool = False,
        component_trunks: bool = False,
        critic_gain: float = 1.0,
    ):
        shape = tuple(observation_space.shape)
        if filters is not None and len(shape) == 2:
            shape = (*shape, 1)
        if filters is not None and (len(shape) != 3 or min(shape[:2]) < 3):
            raise ConfigError(
                f"the convolution needs images (height, width, channels) of at least 3×3; got {shape}: use network mlp"
            )
        images = None if image_channels is None else images_of(observation_space, image_channels)
        policy_key, critic_key, policy_out_key, critic_out_key = jax.random.split(key, 4)
        self.policy_trunk = Trunk(policy_key, shape, sizes, filters, activation, images)
        together = shared or component_trunks
        self.critic_trunk = None if together else Trunk(critic_key, shape, sizes, filters, activation, images)
        discrete = hasattr(action_space, "n")
        self.action_shape = () if discrete else tuple(action_space.shape)
        outputs = action_space.n if discrete else math.prod(self.action_shape)
        width = sizes[-1] if sizes else math.prod(shape) if images is None else images.features
        # A small gain keeps the first policy near uniform, whatever the observation.
        self.policy = Linear(policy_out_key, width, outputs, 0.01)
        self.log_deviation = None if discrete else jnp.zeros(self.action_shape)
        if component_trunks:
            trunk_keys, out_keys = (jax.random.split(one, heads) for one in (critic_key, critic_out_key))
            self.critic = Components(
                one_by_one(lambda one: Trunk(one, shape, sizes, filters, activation, images), trunk_keys),
                one_by_one(lambda one: Linear(one, width, 1, critic_gain), out_keys),
            )
        else:
            self.critic = Linear(critic_out_key, width, heads, critic_gain)

    def __call__(self, observation: jax.Array) -> tuple[Any, jax.Array]:
        """The policy's parameters and the critic's heads for one observation."""
        features = self.policy_trunk(observation)
        policy: Any = self.policy(features)
        if self.log_deviation is not None:
            policy = (policy.reshape(self.action_shape), self.log_deviation)
        if isinstance(self.critic, Components):
            return policy, self.critic(observation)
        return policy, self.critic(features if self.critic_trunk is None else self.critic_trunk(observation))

    def shifted(self, shift: jax.Array) -> "ActorCritic":
        """The same network whose heads are larger by (heads,), everywhere."""

        def bias(network: Any) -> jax.Array:
            critic: Any = network.critic
            found: jax.Array = critic.output.bias if is_components(critic) else critic.bias
            return found

        moved: ActorCritic = eqx.tree_at(bias, self, bias(self) + shift.reshape(bias(self).shape))
        return moved


def padded(array: jax.Array, shape: tuple[int, ...], mode: Any = "constant", **options: Any) -> jax.Array:
    """An array with more entries at the end of its axes: zeros, or others as `jnp.pad` makes them."""
    widths = [(0, new - old) for old, new in zip(array.shape, shape, strict=True)]
    return jnp.pad(array, widths, mode, **options) if any(more for _, more in widths) else array


def with_heads(parameters: Any, wider: Any, factors: np.ndarray, *, copied: bool) -> Any:
    """Parameters of a network for as many heads as there are factors.

    Args:
        parameters: Of the network as it is.
        wider: Their shapes with one head more, which tell the arrays that have an axis of heads.
        factors: Of each head, (as it is or one more,): its output is that of before times this.
        copied: Whether a new head is a copy of the last one, or zero. A trunk of its own, in `Components`, always is.
    """

    def head(old: jax.Array, new: Any) -> jax.Array:
        place = [axis for axis, size in enumerate(new.shape) if size != old.shape[axis]]
        if not place:
            return old
        shape = (*old.shape[: place[0]], len(factors), *old.shape[place[0] + 1 :])
        each = np.expand_dims(factors, tuple(range(1, old.ndim - place[0])))
        return padded(old, shape, "edge" if copied else "constant") * jnp.asarray(each, old.dtype)

    def part(old: Any, new: Any) -> Any:
        if not is_components(old):
            return head(old, new)
        trunk = jax.tree.map(lambda leaf: padded(leaf, (len(factors), *leaf.shape[1:]), "edge"), old.trunk)
        return Components(trunk, jax.tree.map(head, old.output, new.output))

    leaves, structure = jax.tree.flatten(parameters, is_components)
    others, more = jax.tree.flatten(wider, is_components)
    made = [part(*pair) for pair in zip(leaves, others, strict=True)]
    grows = [leaf.shape for leaf in jax.tree.leaves(made)] == [leaf.shape for leaf in jax.tree.leaves(wider)]
    return jax.tree.unflatten(more if grows else structure, made)
