"""Train the networks of an experiment and yield what happens as events.

On a CPU every network trains alone and the networks are spread over the cores, one thread each: a product of these
sizes already keeps a core busy, and stacking gains nothing. On a GPU all networks of one shape train as one stack.
Either way work is dealt out in slices of a fraction of a second, the least advanced first, so that all curves grow
together.
"""

import functools
import importlib.metadata
import math
import platform
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from geocont import devices, spectra
from geocont.ablations import datasets, probes, residual_mlp
from geocont.ablations.experiment import SGD, Adam, Experiment, Initialization, Probes, Variant
from geocont.errors import InputError, JobError
from geocont.events import (
    Event,
    Message,
    NetworkDiverged,
    NetworkFinished,
    NetworkPlan,
    NetworkProgress,
    Progress,
    RunFinished,
    RunStarted,
)

# A slice of work: short enough for a stop or a pause to be prompt, long enough that changing networks costs nothing.
_SLICE_SECONDS = 0.15
_HEARTBEAT_SECONDS = 0.4
_REPORT_SECONDS = 1.0
_PAUSE_SECONDS = 0.5
_EVALUATION_IMAGES = 1000
_KEPT_DRAWS = 2
# Streams of random numbers of one seed: parameters, probe directions, and one data order per epoch.
_STREAMS_PER_SEED = 2**20
_PARAMETER_STREAM, _PROBE_STREAM, _FIRST_EPOCH_STREAM = 0, 1, 2


@dataclass(frozen=True)
class _Network:
    variant: Variant
    seed: int


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
    """Train every variant of `experiment` from every seed.

    Yields RunStarted, then what happens, then RunFinished(status="done"). Each pull returns within half a second. Not
    pulling pauses the training after the slices in hand; closing the generator ends it and its threads.

    Raises:
        InputError: the data or the device cannot be had, or the data does not suit the experiment.
        JobError: a training step failed.
    """
    chosen = devices.resolve(device)
    images = _load(experiment, chosen)
    networks = [
        _Network(variant, experiment.seed + index)
        for index in range(experiment.seeds)
        for variant in experiment.variants
    ]
    yield RunStarted(
        name=experiment.name,
        experiment=msgspec.json.decode(msgspec.json.encode(experiment)),
        networks=tuple(
            NetworkPlan(variant=network.variant.name, seed=network.seed, steps=network.variant.steps)
            for network in networks
        ),
        device=devices.describe(chosen),
        versions=_versions(),
        time=time.time(),
    )
    yield Message(
        level="info",
        text=f"{len(networks)} networks, {len(images.train)} training images, {devices.describe(chosen)}",
        time=time.time(),
    )
    yield from _Crew(_stacks(networks, images, experiment.probes, chosen), devices.worker_count(chosen)).run()


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


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("geocont-tui", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _draw(
    initialization: Initialization, shape: residual_mlp.Shape, seed: int
) -> tuple[Float[Tensor, " parameter"], spectra.Triplets]:
    """The initial parameters of a network and the decompositions of its hidden weights (leading dimension 1)."""
    generator = torch.Generator().manual_seed(seed * _STREAMS_PER_SEED + _PARAMETER_STREAM)
    parameters = residual_mlp.initial_parameters(initialization, shape, generator)
    return parameters, spectra.exact(residual_mlp.blocks(parameters[None], shape)["hidden_weight"])


def _stacks(
    networks: list[_Network], images: _DeviceImages, settings: Probes, device: torch.device
) -> list["StackTraining"]:
    """One network a stack on a CPU, all of a shape in one stack elsewhere."""
    # Variants trained from one seed start from the same weights: what is known of them is found once.
    draw = functools.lru_cache(maxsize=_KEPT_DRAWS)(_draw)
    groups: dict[object, list[_Network]] = defaultdict(list)
    for index, network in enumerate(networks):
        shape = residual_mlp.shape_of(network.variant, images.train.shape[1], images.classes)
        groups[index if device.type == "cpu" else shape].append(network)
    return [StackTraining(group, images, settings, device, draw) for group in groups.values()]


class StackTraining:
    """Networks of one shape in training, in lock step; those that are done or have diverged leave the stack."""

    def __init__(
        self,
        networks: list[_Network],
        images: _DeviceImages,
        settings: Probes,
        device: torch.device,
        draw: Callable[..., tuple[Tensor, spectra.Triplets]],
    ) -> None:
        self._draw = draw
        self.networks = networks
        self.step = 0
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
        drawn = [self._draw(network.variant.initialization, self.shape, network.seed) for network in self.networks]
        self.probe_seconds += time.perf_counter() - began
        flat = torch.stack([parameters for parameters, _ in drawn]).to(self._device)
        self._place(residual_mlp.blocks(flat, self.shape))
        self._cumulative = torch.zeros_like(self._hidden)
        self._follower = probes.Follower(
            self._hidden.transpose(0, 1).to(self._probe_device, copy=True),
            spectra.concatenate([triplets for _, triplets in drawn], self._probe_device),
            [network.seed * _STREAMS_PER_SEED + _PROBE_STREAM for network in self.networks],
            self._settings,
        )
        self._loss_sum = torch.zeros(len(self.networks), device=self._device)
        self._correct_sum, self._batches = torch.zeros_like(self._loss_sum), torch.zeros_like(self._loss_sum)
        self._diverged_at = torch.full((len(self.networks),), -1, device=self._device)
        self._losses = torch.full((len(self.networks),), torch.nan, device=self._device)
        self._factors = torch.full_like(self._losses, torch.nan)
        self._epoch = -1
        self._plan_probes()
        self._started = True

    def _place(self, parameters: dict[str, Tensor]) -> None:
        """Take `parameters` ([network, *block] by name) as leaves for autograd, with gradients and optimisers.

        The hidden weights are stored layer by layer, [layer, network, width, width], so that each leaf is contiguous.
        """
        values = {name: value.clone() for name, value in parameters.items() if name != "hidden_weight"}
        self._hidden = parameters["hidden_weight"].transpose(0, 1).contiguous()
        self._hidden_gradient = torch.zeros_like(self._hidden)
        self._leaves = {name: _leaf(value, torch.zeros_like(value)) for name, value in values.items()}
        self._hidden_leaves = [
            _leaf(weight, gradient) for weight, gradient in zip(self._hidden, self._hidden_gradient, strict=True)
        ]
        self._segments = residual_mlp.segments([network.variant for network in self.networks])
        self._optimizers = []
        start = 0
        for stop in range(1, len(self.networks) + 1):
            settings = self.networks[start].variant.optimizer
            if stop == len(self.networks) or self.networks[stop].variant.optimizer != settings:
                rows = [_rows(leaf, start, stop) for leaf in (*self._leaves.values(), *self._hidden_leaves)]
                self._optimizers.append(_optimizer(settings, rows))
                start = stop

    def _parameters(self) -> dict[str, Tensor]:
        """The parameters by name, [network, *block]."""
        values = {name: leaf.detach() for name, leaf in self._leaves.items()}
        return values | {"hidden_weight": self._hidden.transpose(0, 1)}

    def _gradients(self) -> list[Tensor]:
        """All gradients, each [network, …]."""
        found = [leaf.grad for leaf in self._leaves.values()]
        return [gradient for gradient in found if gradient is not None] + [self._hidden_gradient.transpose(0, 1)]

    def _plan_probes(self) -> None:
        lengths = {network.variant.steps for network in self.networks}
        self._schedules = {steps: set(probes.schedule(steps, self._settings)) for steps in lengths}
        self._exact = {steps: probes.exact_steps(steps, self._settings) for steps in lengths}

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
                events += self._finish(stop)
            if self.networks and not stop.is_set():
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
        for gradient in self._gradients():
            gradient.zero_()
        rows = self._batch_rows()
        images = residual_mlp.standardize(self._images.train[rows], self._images.mean, self._images.std)
        labels = self._images.train_labels[rows]
        factors: list[Tensor] | None = [] if probing else None
        logits = residual_mlp.forward(self._leaves, self._hidden_leaves, images, self._segments, factors)
        losses = residual_mlp.losses(logits, labels)
        losses.sum().backward()  # type: ignore[no-untyped-call]
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
        """Add this step's gradient to the cumulative one, clip it where asked, and take the optimisers' step."""
        began = time.perf_counter()
        self._cumulative += self._hidden_gradient
        self.probe_seconds += time.perf_counter() - began
        if any(network.variant.optimizer.gradient_clip for network in self.networks):
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
            self._hidden_gradient.transpose(0, 1).to(self._probe_device),
            self._cumulative.transpose(0, 1).to(self._probe_device),
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

    def _finish(self, stop: threading.Event) -> list[Event]:
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
                if stop.is_set():
                    return []
                part = slice(start, start + _EVALUATION_IMAGES)
                images = residual_mlp.standardize(self._images.test[part], self._images.mean, self._images.std)
                images = images.expand(len(self.networks), *images.shape)
                labels = self._images.test_labels[part].expand(len(self.networks), -1)
                logits = residual_mlp.forward(self._leaves, self._hidden_leaves, images, self._segments)
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
        self._keep(rest)
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
        self._keep([row for row in range(len(self.networks)) if row not in gone])
        return events

    def _keep(self, rows: list[int]) -> None:
        """Go on with these networks only; parameters, gradients and optimiser states stay as they are."""
        # Of every network one dict a parameter, by the optimiser's names; counters have no network dimension.
        states = [
            [{name: value[row] if value.ndim else value for name, value in state.items()} for state in parameter_states]
            for parameter_states, count in self._optimizer_states()
            for row in range(count)
        ]
        parameters = {name: value[rows] for name, value in self._parameters().items()}
        gradients = [gradient[rows] for gradient in self._gradients()]
        self.networks = [self.networks[row] for row in rows]
        if not self.networks:
            self._release()
            return
        self._place(parameters)
        for gradient, kept in zip(self._gradients(), gradients, strict=True):
            gradient.copy_(kept)
        remaining = iter([states[row] for row in rows])
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                members = [next(remaining) for _ in range(len(group["params"][0]))]
                for index, parameter in enumerate(group["params"]):
                    parts = [member[index] for member in members]
                    optimizer.state[parameter] = {
                        name: torch.stack([part[name] for part in parts]) if value.ndim + 1 == parameter.ndim else value
                        for name, value in parts[0].items()
                    }
        self._cumulative = self._cumulative[:, rows]
        self._orders = self._orders[rows]
        self._losses, self._diverged_at = self._losses[rows], self._diverged_at[rows]
        self._loss_sum, self._correct_sum = self._loss_sum[rows], self._correct_sum[rows]
        self._batches = self._batches[rows]
        self._factors = self._factors[rows]
        self._follower.keep(rows)
        self._plan_probes()

    def _optimizer_states(self) -> list[tuple[list[dict[str, Tensor]], int]]:
        """Of each optimiser the state of every parameter and the number of networks it serves."""
        return [
            (
                [
                    {name: value for name, value in optimizer.state.get(parameter, {}).items() if value is not None}
                    for parameter in group["params"]
                ],
                len(group["params"][0]),
            )
            for optimizer in self._optimizers
            for group in optimizer.param_groups
        ]

    def _release(self) -> None:
        """Let go of everything large: the stack is empty."""
        del self._hidden, self._hidden_gradient, self._leaves, self._hidden_leaves
        del self._cumulative, self._follower, self._orders
        self._optimizers = []
        self._losses = self._losses[:0]


def _leaf(value: Tensor, gradient: Tensor) -> Tensor:
    leaf = value.detach().requires_grad_()
    leaf.grad = gradient
    return leaf


def _rows(leaf: Tensor, start: int, stop: int) -> torch.nn.Parameter:
    """Some networks' part of a leaf as a parameter of its own that shares memory and gradient."""
    parameter = torch.nn.Parameter(leaf.detach()[start:stop])
    parameter.grad = None if leaf.grad is None else leaf.grad[start:stop]
    return parameter


def _optimizer(settings: Adam | SGD, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
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


def _generator(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * _STREAMS_PER_SEED + stream)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Clock:
    """Seconds since the start without pauses: a consumer that holds an event for longer than a moment has paused us."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._left = self._start
        self._paused = 0.0

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start - self._paused

    def leave(self) -> None:
        self._left = time.perf_counter()

    def enter(self) -> None:
        away = time.perf_counter() - self._left
        if away > _PAUSE_SECONDS:
            self._paused += away


@dataclass(frozen=True)
class _Slice:
    """What one slice of work did."""

    events: list[Event]
    positions: list[NetworkProgress]


class _Crew:
    """Worker threads that advance the stacks, the least advanced first, and hand over what happened."""

    def __init__(self, stacks: list[StackTraining], workers: int) -> None:
        self._stacks = stacks
        self._waiting = list(stacks)
        self._workers = min(workers, len(stacks))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        # A short queue: when nobody pulls, the workers soon stand still.
        self._results: queue.Queue[_Slice | BaseException | None] = queue.Queue(maxsize=self._workers)
        self._rates: deque[tuple[float, int]] = deque(maxlen=16)

    def run(self) -> Iterator[Event]:
        """Yield the events of all stacks, a Progress about every second, and RunFinished at the end."""
        threads_before = torch.get_num_threads()
        threads = [
            threading.Thread(target=self._work, name=f"training-{index}", daemon=True) for index in range(self._workers)
        ]
        clock = _Clock()
        moved: dict[tuple[str, int], NetworkProgress] = {}
        reported = 0.0
        for thread in threads:
            thread.start()
        try:
            working = len(threads)
            while working:
                pending: list[Event] = []
                try:
                    result = self._results.get(timeout=_HEARTBEAT_SECONDS)
                except queue.Empty:
                    pending = [self._progress({}, clock.elapsed)]
                else:
                    if isinstance(result, BaseException):
                        raise result
                    if result is None:
                        working -= 1
                        continue
                    moved |= {(position.variant, position.seed): position for position in result.positions}
                    for event in result.events:
                        if isinstance(event, NetworkFinished | NetworkDiverged):
                            moved.pop((event.variant, event.seed), None)
                    pending = result.events
                    if clock.elapsed - reported >= _REPORT_SECONDS:
                        reported = clock.elapsed
                        pending = [*pending, self._progress(moved, reported)]
                        moved = {}
                for event in pending:
                    clock.leave()
                    yield event
                    clock.enter()
            yield self._progress(moved, clock.elapsed)
            yield RunFinished(
                status="done",
                time=time.time(),
                elapsed=clock.elapsed,
                training_seconds=self._sum("training_seconds"),
                probe_seconds=self._sum("probe_seconds"),
                network_steps=self._steps(),
            )
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            torch.set_num_threads(threads_before)

    def _work(self) -> None:
        """One worker: take the least advanced stack, advance it, put it back."""
        torch.set_num_threads(1)
        result: _Slice | BaseException | None
        while not self._stop.is_set():
            with self._lock:
                stack = min(self._waiting, key=lambda waiting: waiting.progress, default=None)
                if stack is not None:
                    self._waiting.remove(stack)
            if stack is None:
                break
            try:
                events = stack.advance(_SLICE_SECONDS, self._stop)
                result = _Slice(events, stack.positions())
            except BaseException as error:
                # Raised again in the thread that pulls.
                result = _explained(error, stack)
            # Handed over before the stack is free again: else another worker could overtake, and events change order.
            self._put(result)
            if isinstance(result, BaseException):
                return
            if stack.networks:
                with self._lock:
                    self._waiting.append(stack)
        self._put(None)

    def _put(self, result: _Slice | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._results.put(result, timeout=_HEARTBEAT_SECONDS)
                return
            except queue.Full:
                continue

    def _progress(self, moved: dict[tuple[str, int], NetworkProgress], elapsed: float) -> Progress:
        steps = self._steps()
        self._rates.append((elapsed, steps))
        (earlier, steps_then), (now, steps_now) = self._rates[0], self._rates[-1]
        training, probing = self._sum("training_seconds"), self._sum("probe_seconds")
        return Progress(
            networks=tuple(moved.values()),
            elapsed=elapsed,
            steps_per_second=(steps_now - steps_then) / (now - earlier) if now > earlier else None,
            probe_share=probing / (training + probing) if training else None,
        )

    def _steps(self) -> int:
        return sum(stack.network_steps for stack in self._stacks)

    def _sum(self, name: str) -> float:
        return float(sum(getattr(stack, name) for stack in self._stacks))


def _explained(error: BaseException, stack: StackTraining) -> BaseException:
    """Running out of memory as an error the user can act on; everything else as it is."""
    # On a CPU torch raises a plain RuntimeError, which only its words tell from others.
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
        names = ", ".join(sorted({network.variant.name for network in stack.networks}))
        return JobError(
            f"out of memory while training {names} at step {stack.step}",
            "lower width, depth or batch_size, train fewer seeds at once with --seeds, or use another --device",
        )
    return error
