"""Train the networks of an experiment and yield what happens as events.

On a CPU every network trains alone, on one core: a product of these sizes keeps a core busy, and stacking gains
nothing. On a GPU all networks of one shape train as one stack. Either way work is dealt out in slices of a fraction of
a second, the least advanced first, so that all curves grow together. `crew.train` spreads the networks over processes.
"""

import functools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from geocont import devices, spectra
from geocont.ablations import checkpoints, datasets, probes, products, residual_mlp
from geocont.ablations.experiment import Experiment, Initialization, Probes, Variant
from geocont.ablations.optimizers import Optimizer
from geocont.ablations.slices import report
from geocont.ablations.workshop import Workshop, is_out_of_memory
from geocont.errors import InputError, JobError
from geocont.events import (
    Event,
    NetworkDiverged,
    NetworkFinished,
    NetworkProgress,
)

_EVALUATION_IMAGES = 1000
_KEPT_DRAWS = 2
# Streams of random numbers of one seed: parameters, probe directions, and one data order per epoch.
_STREAMS_PER_SEED = 2**20
_PARAMETER_STREAM, _PROBE_STREAM, _FIRST_EPOCH_STREAM = 0, 1, 2

# What a stack counts since the latest probe, and its latest losses.
_SUMS = ("loss_sum", "correct_sum", "batches", "losses")


@dataclass(frozen=True)
class Network:
    """A variant from one seed."""

    variant: Variant
    seed: int

    @property
    def key(self) -> checkpoints.Network:
        return self.variant.name, self.seed


@dataclass(frozen=True)
class _DeviceImages:
    """A data set on the training device: images as flat rows of bytes, and the training set's mean and std in bytes."""

    train: UInt8[Tensor, "image pixel"]
    train_labels: Int[Tensor, " image"]
    test: UInt8[Tensor, "image pixel"]
    test_labels: Int[Tensor, " image"]
    mean: float
    std: float
    classes: int


def train(experiment: Experiment, device: str = "auto") -> Iterator[Event]:
    """Train every variant of `experiment` from every seed, in the thread that pulls.

    Yields RunStarted, then what happens, then RunFinished(status="done"). Each pull returns within half a second. Not
    pulling pauses the training.

    Raises:
        InputError: the data or the device cannot be had, or the data does not suit the experiment.
        JobError: a training step failed.
    """
    workshop = ImageWorkshop(experiment, device)
    yield from workshop.introduction()
    yield from report(workshop.slices(workshop.stacks(experiment.networks), threading.Event()))


class ImageWorkshop(Workshop):
    """An experiment's data on a device, and the training of any of its networks there.

    Raises:
        InputError: as `train` does.
    """

    experiment: Experiment

    def __init__(self, experiment: Experiment, device: str) -> None:
        self.device = devices.resolve(device)
        self.experiment = experiment
        self._images = _load(experiment, self.device)

    def description(self, device: str) -> str:
        """How many networks on how many images."""
        return f"{len(self.experiment.networks)} networks, {len(self._images.train):,} training images, {device}"

    def stacks(self, networks: Sequence[tuple[Variant, int]]) -> list["StackTraining"]:
        """These networks (variant and seed) in stacks, to be trained from the beginning."""
        return _stacks(networks, self._images, self.experiment, self.device)

    def restored(self, stored: checkpoints.Stored, names: Sequence[checkpoints.Network]) -> "StackTraining":
        variants = {(variant.name, seed): variant for variant, seed in self.experiment.networks}
        networks = [Network(variants[name], name[1]) for name in stored.facts.networks]
        stack = StackTraining(
            stored.facts.stack,
            networks,
            self._images,
            self.experiment.probes,
            self.device,
            _draw,
        )
        # Where memory runs out is said by the step.
        stack.step = stored.facts.step
        try:
            stack.restore(stored.facts.step, checkpoints.read(stored))
        except (KeyError, MemoryError, RuntimeError, ValueError) as error:
            self.explain(error, stack)
            raise InputError(f"it does not fit: {str(error).splitlines()[0]}", "") from error
        if len(names) < len(networks):
            stack.keep([row for row, network in enumerate(networks) if network.key in names])
        return stack

    def explain(self, error: Exception, stack: "StackTraining") -> None:
        if is_out_of_memory(error):
            names = ", ".join(sorted({network.variant.name for network in stack.networks}))
            raise JobError(
                f"out of memory while training {names} at step {stack.step}",
                "lower width, depth or batch_size, train fewer seeds at once with --seeds, or use another --device",
            ) from error


def _load(experiment: Experiment, device: torch.device) -> _DeviceImages:
    data = datasets.load(experiment.data)
    for variant in experiment.variants:
        if variant.batch_size > len(data.train_images):
            raise InputError(
                f"variant {variant.name!r}: batch_size {variant.batch_size} is more than "
                f"the {len(data.train_images)} training images",
                "lower batch_size or raise data.images",
            )
    flat = torch.from_numpy(data.train_images).flatten(1)
    std, mean = (value.item() for value in torch.std_mean(flat.double(), correction=0))
    return _DeviceImages(
        train=flat.to(device),
        train_labels=torch.from_numpy(data.train_labels).long().to(device),
        test=torch.from_numpy(data.test_images).flatten(1).to(device),
        test_labels=torch.from_numpy(data.test_labels).long().to(device),
        mean=mean,
        std=std or 1.0,
        classes=data.classes,
    )


def _draw(
    initialization: Initialization, shape: residual_mlp.Shape, seed: int
) -> tuple[Float[Tensor, " parameter"], spectra.Triplets]:
    """The initial parameters of a network and the decompositions of its hidden weights (leading dimension 1)."""
    parameters = _initial_parameters(initialization, shape, seed)
    return parameters, spectra.from_gram(residual_mlp.blocks(parameters[None], shape)["hidden_weight"])


def _initial_parameters(
    initialization: Initialization, shape: residual_mlp.Shape, seed: int
) -> Float[Tensor, " parameter"]:
    generator = torch.Generator().manual_seed(seed * _STREAMS_PER_SEED + _PARAMETER_STREAM)
    return residual_mlp.initial_parameters(initialization, shape, generator)


def _stacks(
    networks: Sequence[tuple[Variant, int]], images: _DeviceImages, experiment: Experiment, device: torch.device
) -> list["StackTraining"]:
    """One network a stack on a CPU, all of a shape in one stack elsewhere."""
    # Variants trained from one seed start from the same weights: what is known of them is found once.
    draw = functools.lru_cache(maxsize=_KEPT_DRAWS)(_draw)
    groups: dict[object, list[Network]] = defaultdict(list)
    for index, network in enumerate(Network(variant, seed) for variant, seed in networks):
        shape = residual_mlp.shape_of(network.variant, images.train.shape[1], images.classes)
        groups[index if device.type == "cpu" else shape].append(network)
    places = {(variant.name, seed): place for place, (variant, seed) in enumerate(experiment.networks)}
    return [
        StackTraining(places[group[0].key], group, images, experiment.probes, device, draw) for group in groups.values()
    ]


class StackTraining:
    """Networks of one shape in training, in lock step; those that are done or have diverged leave the stack."""

    def __init__(
        self,
        number: int,
        networks: list[Network],
        images: _DeviceImages,
        settings: Probes,
        device: torch.device,
        draw: Callable[..., tuple[Tensor, spectra.Triplets]],
    ) -> None:
        """`number` names the stack: the place of its first network in the experiment."""
        self.number = number
        self.draw = draw
        self.networks = networks
        self.step = self.kept_step = 0
        self.training_seconds = 0.0
        self.probe_seconds = 0.0
        self.evaluation_seconds = 0.0
        self.network_steps = 0
        self._images = images
        self._device = device
        self._settings = settings
        self._probe_device = torch.device("cpu") if device.type == "mps" else device
        self.shape = residual_mlp.shape_of(networks[0].variant, images.train.shape[1], images.classes)
        self._started = False
        self._loss_sum, self._correct_sum, self._batches = torch.zeros(0), torch.zeros(0), torch.zeros(0)

    def _start(self) -> None:
        """Draw the parameters: here, not at construction, so that hundreds of waiting networks need no memory."""
        began = time.perf_counter()
        drawn = [self.draw(network.variant.initialization, self.shape, network.seed) for network in self.networks]
        self.probe_seconds += time.perf_counter() - began
        flat = torch.stack([parameters for parameters, _ in drawn]).to(self._device)
        self._place(residual_mlp.blocks(flat, self.shape))
        self._follow(
            self._hidden.transpose(0, 1).to(self._probe_device, copy=True),
            spectra.concatenate([triplets for _, triplets in drawn], self._probe_device),
        )

    def _follow(self, initial: Float[Tensor, "network layer d d"], triplets: spectra.Triplets | None) -> None:
        """Begin to measure and to count."""
        self._follower = probes.Follower(
            initial,
            triplets,
            [network.seed * _STREAMS_PER_SEED + _PROBE_STREAM for network in self.networks],
            self._settings,
        )
        self._loss_sum = torch.zeros(len(self.networks), device=self._device)
        self._correct_sum, self._batches = torch.zeros_like(self._loss_sum), torch.zeros_like(self._loss_sum)
        self._diverged_at = torch.full((len(self.networks),), -1, device=self._device)
        self._losses = torch.full((len(self.networks),), torch.nan, device=self._device)
        self._factors = torch.full_like(self._losses, torch.nan)
        # Drawn anew at the next step.
        self._epoch, self._orders = -1, torch.empty((len(self.networks), 0), dtype=torch.int64)
        self._plan_probes()
        self._started = True

    def state(self) -> dict[str, Tensor]:
        """What the next step needs beside seeds, by name, between two steps; `restore` takes it."""
        # A sum is the same whenever its parts are added, as long as their order is.
        self._hidden_gradients.settle()
        found = {f"parameter.{name}": value for name, value in self._parameters().items()}
        found["cumulative"] = self._hidden_gradients.totals
        for number, optimizer in enumerate(self._optimizers):
            for index, state in enumerate(optimizer.states):
                found |= {f"optimizer.{number}.{index}.{name}": value for name, value in state.items()}
        found |= {f"follower.{name}": value for name, value in self._follower.state().items()}
        return found | {name: getattr(self, f"_{name}") for name in _SUMS}

    def restore(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Go on after `step` updates as the stack of the same networks that had this state.

        Raises:
            KeyError, RuntimeError, ValueError: it is the state of other networks.
        """
        # Copies: what was read lies in memory as it lay in the file.
        self._place({name: state[f"parameter.{name}"].to(self._device, copy=True) for name in self.shape.layout})
        drawn = [
            _initial_parameters(network.variant.initialization, self.shape, network.seed) for network in self.networks
        ]
        initial = residual_mlp.blocks(torch.stack(drawn), self.shape)["hidden_weight"]
        self._follow(initial.to(self._probe_device, copy=True), None)
        self._follower.restore(_under("follower.", state))
        self._hidden_gradients.totals.copy_(state["cumulative"])
        for number, optimizer in enumerate(self._optimizers):
            for index, remembered in enumerate(optimizer.states):
                found = _under(f"optimizer.{number}.{index}.", state)
                remembered.update({name: value.to(self._device, copy=True) for name, value in found.items()})
        for name in _SUMS:
            getattr(self, f"_{name}").copy_(state[name])
        self.step = self.kept_step = step

    def _place(self, parameters: dict[str, Tensor]) -> None:
        """Take `parameters` ([network, *block] by name) as leaves for autograd, with gradients and optimisers.

        The hidden weights are stored layer by layer, [layer, network, width, width], so that each leaf is contiguous.
        """
        values = {name: value.clone() for name, value in parameters.items() if name != "hidden_weight"}
        self._hidden = parameters["hidden_weight"].transpose(0, 1).contiguous()
        self._hidden_gradients = products.WeightGradients(
            torch.zeros_like(self._hidden), torch.zeros_like(self._hidden)
        )
        self._leaves = {name: _leaf(value, torch.zeros_like(value)) for name, value in values.items()}
        self._segments = residual_mlp.segments([network.variant for network in self.networks])
        # The gradients of the leaves are these tensors for as long as the leaves exist.
        optimized = [leaf.detach() for leaf in self._leaves.values()] + [*self._hidden]
        gradients = [leaf.grad for leaf in self._leaves.values() if leaf.grad is not None]
        gradients += self._hidden_gradients.values.unbind()
        self._optimizers = []
        start = 0
        for stop in range(1, len(self.networks) + 1):
            settings = self.networks[start].variant.optimizer
            if stop == len(self.networks) or self.networks[stop].variant.optimizer != settings:
                rows = slice(start, stop)
                self._optimizers.append(
                    Optimizer(settings, [value[rows] for value in optimized], [value[rows] for value in gradients])
                )
                start = stop

    def _parameters(self) -> dict[str, Tensor]:
        """The parameters by name, [network, *block]."""
        values = {name: leaf.detach() for name, leaf in self._leaves.items()}
        return values | {"hidden_weight": self._hidden.transpose(0, 1)}

    def _gradients(self) -> list[Tensor]:
        """All gradients, each [network, …]."""
        found = [leaf.grad for leaf in self._leaves.values()]
        return [gradient for gradient in found if gradient is not None] + [
            self._hidden_gradients.values.transpose(0, 1)
        ]

    def _plan_probes(self) -> None:
        lengths = {network.variant.steps for network in self.networks}
        self._schedules = {steps: set(probes.schedule(steps, self._settings)) for steps in lengths}
        self._exact = {steps: probes.exact_steps(steps, self._settings) for steps in lengths}

    tokens: int | None = None

    @property
    def names(self) -> list[checkpoints.Network]:
        """Variant and seed of each network."""
        return [network.key for network in self.networks]

    @property
    def progress(self) -> float:
        """The part of the work that is done, 0…1."""
        return self.step / max(network.variant.steps for network in self.networks) if self.networks else 1.0

    def advance(self, seconds: float, stop: threading.Event) -> list[Event]:
        """Train for about `seconds`, or until something was measured; return what happened."""
        if not self._started:
            self._start()
        events: list[Event] = []
        began = time.perf_counter()
        measured = self.probe_seconds + self.evaluation_seconds
        while self.networks and not stop.is_set():
            probing = any(self.step in schedule for schedule in self._schedules.values())
            self._compute_gradients(probing)
            if probing:
                events += self._freeze_diverged()
                events += self._probe()
                events += self._finish()
            # A step that was begun is ended, so that a checkpoint lies between two.
            if self.networks:
                self._update()
            if probing or time.perf_counter() - began > seconds:
                break
        events += self._freeze_diverged()
        measured = self.probe_seconds + self.evaluation_seconds - measured
        self.training_seconds += time.perf_counter() - began - measured
        return events

    def positions(self) -> list[NetworkProgress]:
        """Where the networks of this stack are."""
        return [
            NetworkProgress(variant=network.variant.name, seed=network.seed, step=self.step, loss=_number(loss))
            for network, loss in zip(self.networks, self._losses.tolist(), strict=True)
        ]

    def _compute_gradients(self, probing: bool) -> None:
        """Forward and backward on the mini-batch of this step; the parameters stay."""
        for leaf in self._leaves.values():
            if leaf.grad is not None:
                leaf.grad.zero_()
        # What is measured of a step is the sum before it.
        self._hidden_gradients.begin(is_measured=probing)
        rows = self._batch_rows()
        images = residual_mlp.standardize(self._images.train[rows], self._images.mean, self._images.std)
        labels = self._images.train_labels[rows]
        factors: list[Tensor] | None = [] if probing else None
        logits = residual_mlp.forward(
            self._leaves, self._hidden, images, self._segments, factors, self._hidden_gradients
        )
        losses = residual_mlp.losses(logits, labels)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.probe_seconds += self._hidden_gradients.spent()
        self._losses = losses.detach()
        self._diverged_at = torch.where(
            (self._diverged_at < 0) & ~self._losses.isfinite(), self.step, self._diverged_at
        )
        self._loss_sum += self._losses
        self._correct_sum += (logits.detach().argmax(-1) == labels).float().mean(1)
        self._batches += 1
        if factors is not None:
            self._factors = torch.stack(factors).mean(0)

    def _batch_rows(self) -> Int[Tensor, "network image"]:
        """The training images of this step: every network goes through its own order, drawn anew each epoch."""
        size, count = self.shape.batch_size, len(self._images.train)
        epoch, batch = divmod(self.step, count // size)
        if epoch != self._epoch:
            self._orders = torch.stack(
                [
                    torch.randperm(count, generator=_generator(network.seed, _FIRST_EPOCH_STREAM + epoch))
                    for network in self.networks
                ]
            ).to(self._device)
            self._epoch = epoch
        return self._orders[:, batch * size : (batch + 1) * size]

    def _update(self) -> None:
        """Clip the gradient where asked and take the optimisers' step."""
        if any(network.variant.optimizer.gradient_clip for network in self.networks):
            # The cumulative gradient is that of the loss.
            self._hidden_gradients.settle()
            limits = [network.variant.optimizer.gradient_clip or math.inf for network in self.networks]
            norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in self._gradients()]).norm(dim=0)
            scale = (torch.tensor(limits, device=self._device) / norms.clamp_min(1e-30)).clamp_max(1.0)
            for gradient in self._gradients():
                gradient *= scale.view(-1, *[1] * (gradient.ndim - 1))
        for optimizer in self._optimizers:
            optimizer.step()
        self.step += 1
        self.network_steps += len(self.networks)

    def _probe(self) -> list[Event]:
        """Measure the networks whose schedule holds this step."""
        rows = [row for row, network in enumerate(self.networks) if self.step in self._schedules[network.variant.steps]]
        if not rows:
            return []
        began = time.perf_counter()
        measurements = self._follower.measure(
            self._hidden.transpose(0, 1).to(self._probe_device),
            self._hidden_gradients.values.transpose(0, 1).to(self._probe_device),
            self._hidden_gradients.totals.transpose(0, 1).to(self._probe_device),
            self._factors.to(self._probe_device),
            exact=any(self.step in self._exact[self.networks[row].variant.steps] for row in rows),
            rows=rows,
        )
        losses, accuracies = (self._loss_sum / self._batches).tolist(), (self._correct_sum / self._batches).tolist()
        events: list[Event] = [
            measurement.event(
                variant=self.networks[row].variant.name,
                seed=self.networks[row].seed,
                step=self.step,
                loss=_number(losses[row]),
                accuracy=_number(accuracies[row]),
            )
            for row, measurement in zip(rows, measurements, strict=True)
        ]
        for sums in (self._loss_sum, self._correct_sum, self._batches):
            sums[rows] = 0
        self.probe_seconds += time.perf_counter() - began
        return events

    def _finish(self) -> list[Event]:
        """Evaluate the networks that have done their steps on the test set and let them go."""
        done = [row for row, network in enumerate(self.networks) if network.variant.steps == self.step]
        if not done:
            return []
        began = time.perf_counter()
        rest = [row for row in range(len(self.networks)) if row not in done]
        loss_sum = torch.zeros(len(self.networks), device=self._device)
        correct = torch.zeros_like(loss_sum)
        total = len(self._images.test)
        with torch.no_grad():
            for start in range(0, total, _EVALUATION_IMAGES):
                part = slice(start, start + _EVALUATION_IMAGES)
                images = residual_mlp.standardize(self._images.test[part], self._images.mean, self._images.std)
                images = images.expand(len(self.networks), *images.shape)
                labels = self._images.test_labels[part].expand(len(self.networks), -1)
                logits = residual_mlp.forward(self._leaves, self._hidden, images, self._segments)
                loss_sum += residual_mlp.losses(logits, labels) * labels.shape[1]
                correct += (logits.argmax(-1) == labels).float().sum(1)
        losses, accuracies = (loss_sum / total).tolist(), (correct / total).tolist()
        events: list[Event] = [
            NetworkFinished(
                variant=self.networks[row].variant.name,
                seed=self.networks[row].seed,
                step=self.step,
                test_loss=_number(losses[row]),
                test_accuracy=_number(accuracies[row]),
            )
            for row in done
        ]
        self.keep(rest)
        self.evaluation_seconds += time.perf_counter() - began
        return events

    def _freeze_diverged(self) -> list[Event]:
        """Take out the networks whose loss was not finite at some step. Waits for the device."""
        if not self.networks:
            return []
        steps = self._diverged_at.tolist()
        gone = [row for row, step in enumerate(steps) if step >= 0]
        if not gone:
            return []
        events: list[Event] = [
            NetworkDiverged(
                variant=self.networks[row].variant.name,
                seed=self.networks[row].seed,
                step=steps[row],
                reason="the training loss was not finite",
            )
            for row in gone
        ]
        self.keep([row for row in range(len(self.networks)) if row not in gone])
        return events

    def keep(self, rows: list[int]) -> None:
        """Go on with these networks only; parameters, gradients and optimiser states stay as they are."""
        # Of every network one dict a parameter, by the optimiser's names; counters have no network dimension.
        states = [
            [{name: value[row] if value.ndim else value for name, value in state.items()} for state in optimizer.states]
            for optimizer in self._optimizers
            for row in range(len(optimizer.parameters[0]))
        ]
        parameters = {name: value[rows] for name, value in self._parameters().items()}
        gradients = [gradient[rows] for gradient in self._gradients()]
        totals, is_settled = self._hidden_gradients.totals[:, rows], self._hidden_gradients.is_settled
        self.networks = [self.networks[row] for row in rows]
        if not self.networks:
            self._release()
            return
        self._place(parameters)
        for gradient, kept in zip(self._gradients(), gradients, strict=True):
            gradient.copy_(kept)
        self._hidden_gradients.totals.copy_(totals)
        self._hidden_gradients.is_settled = is_settled
        remaining = iter([states[row] for row in rows])
        for optimizer in self._optimizers:
            members = [next(remaining) for _ in range(len(optimizer.parameters[0]))]
            optimizer.states = [
                {
                    name: torch.stack([part[name] for part in parts]) if value.ndim + 1 == parameter.ndim else value
                    for name, value in parts[0].items()
                }
                for parameter, *parts in zip(optimizer.parameters, *members, strict=True)
            ]
        self._orders = self._orders[rows]
        self._losses, self._diverged_at = self._losses[rows], self._diverged_at[rows]
        self._loss_sum, self._correct_sum = self._loss_sum[rows], self._correct_sum[rows]
        self._batches = self._batches[rows]
        self._factors = self._factors[rows]
        self._follower.keep(rows)
        self._plan_probes()

    def _release(self) -> None:
        """Let go of everything large: the stack is empty."""
        del self._hidden, self._hidden_gradients, self._leaves, self._follower, self._orders
        self._optimizers = []
        self._losses = self._losses[:0]


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _leaf(value: Tensor, gradient: Tensor) -> Tensor:
    leaf = value.detach().requires_grad_()
    leaf.grad = gradient
    return leaf


def _generator(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * _STREAMS_PER_SEED + stream)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
