"""The product of a linear layer, by the fastest kernel at hand, and where the gradient of its weight goes.

On a CPU torch multiplies float32 matrices with the BLAS it was built with. Where that is MKL, processors that are not
Intel's run its AVX2 code; oneDNN, which torch carries as well, uses AVX-512 wherever it exists and is up to twice as
fast there at the sizes of a hidden layer.
"""

import time

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx

# Below this many multiplications the call itself costs more than the better kernel saves.
_SMALLEST_PRODUCT = 128 * 128 * 64
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class WeightGradients:
    """Multiplies and keeps the gradients of the weights of all layers, in place of leaves: each is written once.

    `values` are those of the latest step and `totals` the sum over all earlier steps that were settled. Adding up costs
    the more the less of it is in the cache: every second step adds its own gradient and the one before it.
    """

    def __init__(self, values: Float[Tensor, "layer network m n"], totals: Float[Tensor, "layer network m n"]) -> None:
        """`totals` hold `values` already; set `is_settled` where they do not."""
        self.values, self.totals = values, totals
        self.is_settled = True
        self.seconds = 0.0
        self._is_adding = False
        self._is_first = True
        # Indexing anew costs as much as a tenth of an addition.
        self._value_of, self._total_of = values.unbind(), totals.unbind()

    def begin(self, is_measured: bool) -> None:
        """Expect the gradients of a step. Where it `is_measured`, `totals` will be the sum over the steps before it."""
        if is_measured:
            self.settle()
        self._is_adding = not self.is_settled
        self.is_settled = self._is_adding
        self._is_first = True

    def go_on(self) -> None:
        """Expect another part of the gradients of this step: they add up."""
        self._is_first = False

    def take(self, layer: int, gradient: Float[Tensor, "network row m"], x: Float[Tensor, "network row n"]) -> None:
        """Keep the gradient of a layer's weight, gradientᵀ x."""
        value = self._value_of[layer]
        # Written where it stays; only parts of a step, and what another precision has multiplied, must be copied.
        is_direct = self._is_first and x.dtype == value.dtype
        part = value if is_direct else _product(gradient.mT, x.mT)
        if self._is_adding and self._is_first:
            self._add(layer, value)
        if is_direct:
            torch.bmm(gradient.mT, x, out=value)
        elif self._is_first:
            value.copy_(part)
        else:
            value.add_(part)
        if self._is_adding:
            self._add(layer, part)

    def _add(self, layer: int, part: Float[Tensor, "network m n"]) -> None:
        began = time.perf_counter()
        self._total_of[layer].add_(part)
        self.seconds += time.perf_counter() - began

    def settle(self) -> None:
        """Add to `totals` what they lack: before `values` are changed, and where `totals` are wanted."""
        if not self.is_settled:
            began = time.perf_counter()
            self.totals += self.values
            self.seconds += time.perf_counter() - began
            self.is_settled = True

    def spent(self) -> float:
        """Seconds spent on adding up since the last time this was asked."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def linear(
    x: Float[Tensor, "network image n"],
    weight: Float[Tensor, "network m n"],
    gradients: WeightGradients | None = None,
    layer: int = 0,
) -> Float[Tensor, "network image m"]:
    """x Wᵀ for every network, differentiable in both. The weight's gradient goes to `gradients` if they are given."""
    return _Linear.apply(x, weight, gradients, layer)  # type: ignore[no-any-return, no-untyped-call]


def _product(x: Float[Tensor, "network row n"], weight: Float[Tensor, "network m n"]) -> Float[Tensor, "network row m"]:
    """x Wᵀ of every network; a network alone is spared the batched kernel."""
    if len(weight) > 1:
        return torch.bmm(x, weight.mT)
    if (
        _HAS_ONEDNN
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.shape[1] * weight.numel() >= _SMALLEST_PRODUCT
    ):
        return torch.ops.mkldnn._linear_pointwise.default(x, weight[0], None, "none", [], "")  # type: ignore[no-any-return]
    return torch.mm(x[0], weight[0].t())[None]


class _Linear(torch.autograd.Function):
    """The product and the two products of its derivative."""

    @staticmethod
    def forward(
        context: FunctionCtx, x: Tensor, weight: Tensor, gradients: WeightGradients | None, layer: int
    ) -> Tensor:
        context.save_for_backward(x, weight)
        context.gradients, context.layer = gradients, layer  # type: ignore[attr-defined]
        return _product(x, weight)

    @staticmethod
    def backward(context: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = context.saved_tensors  # type: ignore[attr-defined]
        to_x = _product(gradient, weight.mT) if context.needs_input_grad[0] else None  # type: ignore[attr-defined]
        if context.gradients is None:  # type: ignore[attr-defined]
            return to_x, _product(gradient.mT, x.mT), None, None
        context.gradients.take(context.layer, gradient, x)  # type: ignore[attr-defined]
        return to_x, None, None, None
