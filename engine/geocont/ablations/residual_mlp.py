"""The toy networks: image → width, depth × (h ← h + activation(W norm(h) [+ b])), width → classes.

Networks of one shape are held as one stack: a flat parameter tensor [network, parameter] with views into it, so that
one batched product, one optimiser call and one probe serve all of them. A stack of one is a network alone; the numbers
are the same. Residual connection, activation and normalisation may differ inside a stack: they are applied segment by
segment.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from geocont.ablations import products
from geocont.ablations.experiment import He, Initialization, Normal, Orthogonal, UniformFanIn, Variant

_NORMALIZATION_EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """What networks must share to train as one stack."""

    inputs: int
    width: int
    depth: int
    classes: int
    bias: bool
    batch_size: int

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameter blocks of one network, in their order in the flat tensor."""
        blocks: dict[str, tuple[int, ...]] = {
            "input_weight": (self.width, self.inputs),
            "input_bias": (self.width,),
            "hidden_weight": (self.depth, self.width, self.width),
            "hidden_bias": (self.depth, self.width),
            "output_weight": (self.classes, self.width),
            "output_bias": (self.classes,),
        }
        if not self.bias:
            del blocks["hidden_bias"]
        return blocks

    @property
    def parameter_count(self) -> int:
        return sum(math.prod(shape) for shape in self.layout.values())

    @property
    def product_operations(self) -> int:
        """Floating-point operations of one training step's products: forward, input and weight gradients."""
        hidden = 3 * self.depth * 2 * self.batch_size * self.width**2
        return (
            hidden
            + 2 * 2 * self.batch_size * self.inputs * self.width
            + 3 * 2 * self.batch_size * self.width * self.classes
        )


def shape_of(variant: Variant, inputs: int, classes: int) -> Shape:
    """The shape of a variant's network on images of `inputs` pixels in `classes` classes."""
    return Shape(
        inputs=inputs,
        width=variant.width,
        depth=variant.depth,
        classes=classes,
        bias=variant.bias,
        batch_size=variant.batch_size,
    )


def blocks(flat: Float[Tensor, "network parameter"], shape: Shape) -> dict[str, Tensor]:
    """Views of the flat tensor by block name, each [network, *block shape]."""
    views, position = {}, 0
    for name, block_shape in shape.layout.items():
        size = math.prod(block_shape)
        views[name] = flat[:, position : position + size].view(len(flat), *block_shape)
        position += size
    return views


def initial_parameters(
    initialization: Initialization, shape: Shape, generator: torch.Generator
) -> Float[Tensor, " parameter"]:
    """Draw one network. Hidden weights as `initialization` says, the rest as torch.nn.Linear does.

    Hidden biases start at 0, except under `uniform_fan_in`, where they are drawn as torch.nn.Linear draws them.
    """
    flat = torch.zeros(1, shape.parameter_count)
    views = {name: view[0] for name, view in blocks(flat, shape).items()}
    for name, fan_in in (("input", shape.inputs), ("output", shape.width)):
        limit = 1 / math.sqrt(fan_in)
        views[f"{name}_weight"].uniform_(-limit, limit, generator=generator)
        views[f"{name}_bias"].uniform_(-limit, limit, generator=generator)
    hidden = views["hidden_weight"]
    match initialization:
        case Normal(std=std):
            hidden.normal_(0, std, generator=generator)
        case He():
            hidden.normal_(0, math.sqrt(2 / shape.width), generator=generator)
        case Orthogonal(gain=gain):
            for weight in hidden:
                torch.nn.init.orthogonal_(weight, gain, generator=generator)
        case UniformFanIn():
            limit = 1 / math.sqrt(shape.width)
            hidden.uniform_(-limit, limit, generator=generator)
            if shape.bias:
                views["hidden_bias"].uniform_(-limit, limit, generator=generator)
    return flat[0]


def radial_factor(values: Float[Tensor, "*rows width"], scaled: bool) -> Float[Tensor, "*rows 1"]:
    """tanh(‖x‖), or tanh(‖x‖/√width): what a radial activation multiplies its input by. 1 is a linear network."""
    norm = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    return torch.tanh(norm / math.sqrt(values.shape[-1]) if scaled else norm)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "radial": lambda x: x * radial_factor(x, scaled=False),
    "radial_scaled": lambda x: x * radial_factor(x, scaled=True),
}

NORMALIZATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "layernorm": lambda x: F.layer_norm(x, x.shape[-1:], eps=_NORMALIZATION_EPSILON),
    "rmsnorm": lambda x: F.rms_norm(x, x.shape[-1:], eps=_NORMALIZATION_EPSILON),
}


@dataclass(frozen=True)
class Segment:
    """Consecutive networks of a stack, `start` up to `stop`, whose layers do the same beside the matrix product."""

    start: int
    stop: int
    residual: bool
    activation: str
    normalization: str


def segments(variants: Sequence[Variant]) -> list[Segment]:
    """Group consecutive networks, given by their variants, that apply the same functions."""
    found: list[Segment] = []
    for index, variant in enumerate(variants):
        kind = (variant.residual, variant.activation, variant.normalization)
        if found and (found[-1].residual, found[-1].activation, found[-1].normalization) == kind:
            found[-1] = Segment(found[-1].start, index + 1, *kind)
        else:
            found.append(Segment(index, index + 1, *kind))
    return found


def forward(
    parameters: dict[str, Tensor],
    hidden_weights: Iterable[Float[Tensor, "network width width"]],
    images: Float[Tensor, "network image pixel"],
    stack: Sequence[Segment],
    factors: list[Float[Tensor, " network"]] | None = None,
    gradients: products.WeightGradients | None = None,
) -> Float[Tensor, "network image class"]:
    """Logits of every network for its own images.

    `hidden_weights` are the layers of parameters["hidden_weight"]; their gradients go to `gradients` if they are given.
    When `factors` is a list, one tensor a layer is appended to it: the mean activation factor tanh(·) of
    every radial network, NaN for the others.
    """
    h = products.linear(images, parameters["input_weight"]) + parameters["input_bias"].unsqueeze(1)
    hidden_bias = parameters.get("hidden_bias")
    for layer, weight in enumerate(hidden_weights):
        normalized = _by_segment(stack, h, lambda segment, x: NORMALIZATIONS[segment.normalization](x))
        z = products.linear(normalized, weight, gradients, layer)
        if hidden_bias is not None:
            z = z + hidden_bias[:, layer].unsqueeze(1)
        if factors is not None:
            factors.append(_factors(stack, z.detach()))
        activated = _by_segment(stack, z, lambda segment, x: ACTIVATIONS[segment.activation](x))
        if len(stack) == 1:
            h = h + activated if stack[0].residual else activated
        else:
            parts = [
                h[part.start : part.stop] + activated[part.start : part.stop]
                if part.residual
                else activated[part.start : part.stop]
                for part in stack
            ]
            h = torch.cat(parts)
    return products.linear(h, parameters["output_weight"]) + parameters["output_bias"].unsqueeze(1)


def _by_segment(stack: Sequence[Segment], x: Tensor, function: Callable[[Segment, Tensor], Tensor]) -> Tensor:
    if len(stack) == 1:
        return function(stack[0], x)
    return torch.cat([function(part, x[part.start : part.stop]) for part in stack])


def _factors(stack: Sequence[Segment], z: Float[Tensor, "network image width"]) -> Float[Tensor, " network"]:
    means = z.new_full((z.shape[0],), torch.nan)
    for part in stack:
        if part.activation.startswith("radial"):
            factor = radial_factor(z[part.start : part.stop], scaled=part.activation == "radial_scaled")
            means[part.start : part.stop] = factor.mean((1, 2))
    return means


def standardize(images: UInt8[Tensor, "*rows pixel"], mean: float, std: float) -> Float[Tensor, "*rows pixel"]:
    """Bytes to float32 with the mean and standard deviation (in bytes) of the training set taken out."""
    return images.to(torch.float32).sub_(mean).mul_(1 / std)


def losses(
    logits: Float[Tensor, "network image class"], labels: Int[Tensor, "network image"]
) -> Float[Tensor, " network"]:
    """Mean cross-entropy of each network."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape).mean(1)
