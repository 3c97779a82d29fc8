"""The optimisers against torch's own, bit for bit."""

import pytest
import torch
from geocont.ablations.experiment import SGD, Adam
from geocont.ablations.optimizers import Optimizer

SHAPES = [(3, 5, 7), (3, 11), (3,), (2, 64, 64)]
SETTINGS = [
    Adam(),
    Adam(learning_rate=3e-2, betas=(0.5, 0.9), epsilon=1e-3, weight_decay=0.1),
    Adam(betas=(0.0, 0.0), epsilon=0.0),
    SGD(),
    SGD(learning_rate=0.3, momentum=0.9),
    SGD(momentum=0.5, weight_decay=0.2),
]


def theirs(settings: Adam | SGD, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if isinstance(settings, Adam):
        return torch.optim.AdamW(
            parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
    return torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def drawn(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_steps_are_those_of_torch(settings):
    parameters = [torch.nn.Parameter(value) for value in drawn(0)]
    peer = theirs(settings, parameters)
    values, gradients = drawn(0), drawn(0)
    optimizer = Optimizer(settings, values, gradients)
    for step in range(1, 6):
        rate = settings.learning_rate / step
        for group in peer.param_groups:
            group["lr"] = rate
        for parameter, gradient, new in zip(parameters, gradients, drawn(step), strict=True):
            parameter.grad = new
            gradient.copy_(new)
        peer.step()
        optimizer.step(rate)
        if step == 3:
            # What goes on from a checkpoint has the states alone.
            states = [{name: value.clone() for name, value in state.items()} for state in optimizer.states]
            optimizer = Optimizer(settings, values, gradients)
            optimizer.states = states
    for value, parameter, state in zip(values, parameters, optimizer.states, strict=True):
        assert torch.equal(value, parameter)
        remembered = {name: found for name, found in peer.state[parameter].items() if found is not None}
        assert state.keys() == remembered.keys()
        assert all(torch.equal(state[name], remembered[name]) for name in state)


def test_the_rate_of_the_settings_is_what_is_taken_without_another():
    value, gradient = torch.ones(2), torch.ones(2)
    Optimizer(SGD(learning_rate=0.25), [value], [gradient]).step()
    assert value.tolist() == [0.75, 0.75]
