"""AdamW and SGD on torch's fused kernels.

`torch.optim` calls the same kernels, and brings torch's compiler with it: 800 modules that nothing here needs, and that
would double the time until a process trains.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from geocont.ablations.experiment import SGD, Adam


class Optimizer:
    """Updates parameters in place, from gradients that are found where they were said to be.

    Attributes:
        parameters: what is updated; none of them a leaf for autograd.
        gradients: their gradients, of the same shapes.
        states: what is remembered of each, by torch.optim's names: exp_avg, exp_avg_sq and step (a number of steps) of
            Adam, momentum_buffer of SGD with momentum. Empty before the first step.
    """

    def __init__(
        self,
        settings: Adam | SGD,
        parameters: Iterable[Float[Tensor, "..."]],
        gradients: Iterable[Float[Tensor, "..."]],
    ) -> None:
        self.settings = settings
        self.parameters, self.gradients = list(parameters), list(gradients)
        self.states: list[dict[str, Tensor]] = [{} for _ in self.parameters]

    @torch.no_grad()
    def step(self, learning_rate: float | None = None) -> None:
        """One update; at the rate of the settings if none is given."""
        rate = self.settings.learning_rate if learning_rate is None else learning_rate
        if isinstance(self.settings, Adam):
            self._adamw(self.settings, rate)
        else:
            self._sgd(self.settings, rate)

    def _adamw(self, settings: Adam, learning_rate: float) -> None:
        """Loshchilov & Hutter (2019), algorithm 2; without weight decay it is Adam."""
        for parameter, state in zip(self.parameters, self.states, strict=True):
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        steps = self._all("step")
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            self.parameters,
            self.gradients,
            self._all("exp_avg"),
            self._all("exp_avg_sq"),
            [],
            steps,
            lr=learning_rate,
            beta1=settings.betas[0],
            beta2=settings.betas[1],
            weight_decay=settings.weight_decay,
            eps=settings.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _sgd(self, settings: SGD, learning_rate: float) -> None:
        is_first = settings.momentum > 0 and not all(self.states)
        if is_first:
            for parameter, state in zip(self.parameters, self.states, strict=True):
                state["momentum_buffer"] = torch.empty_like(parameter)
        torch._fused_sgd_(
            self.parameters,
            self.gradients,
            self._all("momentum_buffer") if settings.momentum > 0 else [],
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            lr=learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=is_first,
        )

    def _all(self, name: str) -> list[Tensor]:
        return [state[name] for state in self.states]
