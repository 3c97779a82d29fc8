import math

import pytest
import torch
from geocont.ablations import residual_mlp
from geocont.ablations.experiment import He, Normal, Orthogonal, UniformFanIn, Variant
from geocont.ablations.residual_mlp import Shape
from torch.utils.flop_counter import FlopCounterMode


def shape(**changes) -> Shape:
    return Shape(**{"inputs": 9, "width": 6, "depth": 3, "classes": 4, "bias": False, "batch_size": 5} | changes)


class Reference(torch.nn.Module):
    """The network as anyone would write it, one module a layer, functions straight from their formulas."""

    def __init__(self, variant: Variant, size: Shape, flat: torch.Tensor) -> None:
        super().__init__()
        self.variant = variant
        self.first = torch.nn.Linear(size.inputs, size.width)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(size.width, size.width, bias=size.bias) for _ in range(size.depth)
        )
        self.last = torch.nn.Linear(size.width, size.classes)
        views = residual_mlp.blocks(flat[None], size)
        with torch.no_grad():
            self.first.weight.copy_(views["input_weight"][0])
            self.first.bias.copy_(views["input_bias"][0])
            self.last.weight.copy_(views["output_weight"][0])
            self.last.bias.copy_(views["output_bias"][0])
            for index, layer in enumerate(self.layers):
                layer.weight.copy_(views["hidden_weight"][0, index])
                if size.bias:
                    layer.bias.copy_(views["hidden_bias"][0, index])

    def activation(self, x):
        norm = x.square().sum(-1, keepdim=True).sqrt()
        return {
            "none": lambda: x,
            "relu": lambda: x.clamp_min(0),
            "gelu": lambda: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
            "silu": lambda: x * torch.sigmoid(x),
            "tanh": lambda: torch.tanh(x),
            "leaky_relu": lambda: torch.where(x > 0, x, 0.01 * x),
            "elu": lambda: torch.where(x > 0, x, torch.exp(x) - 1),
            "radial": lambda: x * torch.tanh(norm),
            "radial_scaled": lambda: x * torch.tanh(norm / math.sqrt(x.shape[-1])),
        }[self.variant.activation]()

    def normalization(self, x):
        return {
            "none": lambda: x,
            "layernorm": lambda: (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt(),
            "rmsnorm": lambda: x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt(),
        }[self.variant.normalization]()

    def forward(self, x):
        h = self.first(x)
        for layer in self.layers:
            change = self.activation(layer(self.normalization(h)))
            h = h + change if self.variant.residual else change
        return self.last(h)


VARIANTS = [
    Variant(name=f"{activation}-{normalization}-{residual}-{bias}", activation=activation, normalization=normalization,
            residual=residual, bias=bias)
    for activation in residual_mlp.ACTIVATIONS
    for normalization, residual, bias in [("none", True, False), ("layernorm", True, True), ("rmsnorm", False, False)]
]  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_logits_and_gradients_equal_those_of_a_plain_module(variant):
    size = shape(bias=variant.bias)
    generator = torch.Generator().manual_seed(1)
    flat = residual_mlp.initial_parameters(Normal(std=0.5), size, generator).double()
    if variant.bias:
        residual_mlp.blocks(flat[None], size)["hidden_bias"].normal_(generator=generator)
    images = torch.randn(5, size.inputs, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 3, 1, 2, 0])

    reference = Reference(variant, size, flat).double()
    expected = reference(images)
    torch.nn.functional.cross_entropy(expected, labels).backward()

    stacked = flat[None].clone().requires_grad_()
    parameters = residual_mlp.blocks(stacked, size)
    layers = list(parameters["hidden_weight"].unbind(1))
    logits = residual_mlp.forward(parameters, layers, images[None], residual_mlp.segments([variant]))
    residual_mlp.losses(logits, labels[None]).sum().backward()

    torch.testing.assert_close(logits[0], expected)
    gradients = residual_mlp.blocks(stacked.grad, size)
    torch.testing.assert_close(
        gradients["hidden_weight"][0], torch.stack([layer.weight.grad for layer in reference.layers])
    )
    torch.testing.assert_close(gradients["input_weight"][0], reference.first.weight.grad)
    torch.testing.assert_close(gradients["output_bias"][0], reference.last.bias.grad)


def test_networks_of_different_kinds_in_one_stack_do_not_touch_each_other():
    size = shape()
    generator = torch.Generator().manual_seed(2)
    variants = [VARIANTS[0], VARIANTS[3], VARIANTS[3], VARIANTS[-1]]
    assert [(part.start, part.stop) for part in residual_mlp.segments(variants)] == [(0, 1), (1, 3), (3, 4)]
    flat = torch.stack([residual_mlp.initial_parameters(Normal(std=0.5), size, generator) for _ in variants]).double()
    images = torch.randn(4, 5, size.inputs, generator=generator, dtype=torch.float64)
    parameters = residual_mlp.blocks(flat, size)
    stacked = residual_mlp.forward(
        parameters, list(parameters["hidden_weight"].unbind(1)), images, residual_mlp.segments(variants)
    )
    for index, variant in enumerate(variants):
        alone = residual_mlp.blocks(flat[index : index + 1], size)
        expected = residual_mlp.forward(
            alone,
            list(alone["hidden_weight"].unbind(1)),
            images[index : index + 1],
            residual_mlp.segments([variant]),
        )
        torch.testing.assert_close(stacked[index], expected[0])


def test_the_factors_of_radial_networks_are_reported_and_others_have_none():
    size = shape(width=16)
    variants = [Variant(name="a", activation="radial_scaled"), Variant(name="b", activation="gelu")]
    flat = torch.stack(
        [residual_mlp.initial_parameters(Normal(std=0.2), size, torch.Generator().manual_seed(3)) for _ in variants]
    )
    parameters = residual_mlp.blocks(flat, size)
    layers = list(parameters["hidden_weight"].unbind(1))
    images = torch.randn(2, 5, size.inputs, generator=torch.Generator().manual_seed(4))
    factors: list[torch.Tensor] = []
    residual_mlp.forward(parameters, layers, images, residual_mlp.segments(variants), factors)
    h = torch.nn.functional.linear(images[0], parameters["input_weight"][0], parameters["input_bias"][0])
    z = h @ layers[0][0].T
    expected = torch.tanh(z.norm(dim=-1) / 4).mean()
    assert len(factors) == size.depth
    assert float(factors[0][0]) == pytest.approx(float(expected), rel=1e-5)
    assert all(math.isnan(float(factor[1])) for factor in factors)


def test_initializations_have_the_spread_they_promise():
    size = shape(width=64, depth=8, bias=True)

    def draw(initialization):
        flat = residual_mlp.initial_parameters(initialization, size, torch.Generator().manual_seed(0))
        return residual_mlp.blocks(flat[None], size)

    assert float(draw(Normal(std=0.3))["hidden_weight"].std()) == pytest.approx(0.3, rel=0.02)
    assert float(draw(He())["hidden_weight"].std()) == pytest.approx(math.sqrt(2 / 64), rel=0.02)
    uniform = draw(UniformFanIn())
    assert float(uniform["hidden_weight"].abs().max()) == pytest.approx(1 / 8, rel=0.01)
    assert float(uniform["hidden_bias"].abs().max()) > 0
    assert float(draw(He())["hidden_bias"].abs().max()) == 0
    weight = draw(Orthogonal(gain=2.0))["hidden_weight"][0, 3]
    torch.testing.assert_close(weight @ weight.T, 4 * torch.eye(64), atol=1e-4, rtol=0)
    assert float(draw(He())["input_weight"].abs().max()) == pytest.approx(1 / 3, rel=0.01)


def test_the_count_of_operations_matches_the_products_that_run():
    size = shape()
    with FlopCounterMode(display=False) as counter:
        flat = residual_mlp.initial_parameters(Normal(), size, torch.Generator())[None].requires_grad_()
        parameters = residual_mlp.blocks(flat, size)
        images = torch.randn(1, size.batch_size, size.inputs)
        layers = list(parameters["hidden_weight"].unbind(1))
        logits = residual_mlp.forward(parameters, layers, images, residual_mlp.segments([VARIANTS[3]]))
        logits.sum().backward()
    assert counter.get_total_flops() == size.product_operations
