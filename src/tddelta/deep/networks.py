"""Networks with a policy output and the critic's heads.

A network is any `f(key, observation_space, action_space, heads) → eqx.Module` whose call takes ONE observation
(float32) and returns (policy, heads): logits (A,) or (mean, log standard deviation), and `heads` numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from tddelta.deep.convolutions import Channels, ImageConvolutions, Images, images_of
from tddelta.errors import ConfigError

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
    """Optional convolutions, then dense layers; the activation follows every layer.

    Attributes:
        convolution: A 3×3 convolution as a layer on patches, or the convolutions of images, or None.
        layers: The dense layers.
        activation: Name in `ACTIVATIONS`.
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
        keys = jax.random.split(key, len(sizes) + 1)
        gain = math.sqrt(2)
        width = math.prod(shape)
        self.convolution = None
        if filters is not None:
            height, wide, channels = shape
            self.convolution = Linear(keys[0], 9 * channels, filters, gain)
            width = (height - 2) * (wide - 2) * filters
        if images is not None:
            self.convolution = ImageConvolutions(keys[0], images)
            width = images.features
        layers = []
        for layer_key, size in zip(keys[1:], sizes, strict=True):
            layers.append(Linear(layer_key, width, size, gain))
            width = size
        self.layers = tuple(layers)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Features (last size,) of one observation."""
        activation = ACTIVATIONS[self.activation]
        if isinstance(self.convolution, ImageConvolutions):
            x = self.convolution(x, activation)
        elif self.convolution is not None:
            x = activation(self.convolution(patches(x if x.ndim == 3 else x[..., None])))
        x = x.reshape(-1)
        for layer in self.layers:
            x = activation(layer(x))
        return x


def patches(image: jax.Array) -> jax.Array:
    """All 3×3 patches of an image, flattened: (H, W, C) → (H−2, W−2, 9C).

    A convolution as a matrix product of patches: in XLA on a CPU it trains several times faster than the
    convolution itself.
    """
    height, width, _ = image.shape
    shifted = [image[i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)


class Components(eqx.Module):
    """Heads with a trunk and an output each: they share nothing, so that each can be learned on a device of its own.

    Attributes:
        trunk: The trunks; every array has a leading axis (heads, …).
        output: Their outputs, likewise.
    """

    trunk: Trunk
    output: Linear

    def __call__(self, observation: jax.Array) -> jax.Array:
        """The heads (heads,) for one observation."""

        def head(trunk: Trunk, output: Linear) -> jax.Array:
            return output(trunk(observation))[0]

        heads: jax.Array = jax.vmap(head)(self.trunk, self.output)
        return heads


def one_by_one(make: Callable[[jax.Array], Any], keys: jax.Array) -> Any:
    """What is made of every key, stacked.

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
