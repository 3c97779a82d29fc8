"""Train the language models of an experiment; what happens comes as slices of work, as of the networks in `training`.

Every network trains alone: its matrices are large enough to keep a device busy. Networks of one seed start from the
same numbers and see the same sequences in the same order.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from geocont import devices
from geocont.ablations import checkpoints, corpora, language_model, probes, products
from geocont.ablations.experiment import LanguageExperiment, LanguageVariant
from geocont.ablations.optimizers import Optimizer
from geocont.ablations.workshop import Workshop, is_out_of_memory
from geocont.errors import InputError, JobError
from geocont.events import (
    Event,
    Message,
    NetworkDiverged,
    NetworkFinished,
    NetworkProgress,
)

_STREAMS_PER_SEED = 2**20
_PARAMETER_STREAM, _PROBE_STREAM, _FIRST_EPOCH_STREAM = 0, 1, 2
# Held-out sequences that are evaluated while training, and at the end.
_SOME_SEQUENCES, _MOST_SEQUENCES = 32, 1024
_EVALUATIONS = 20
MODELS = "models"


def _hush(text: str) -> None:
    """Say nothing."""


@dataclass
class _Throughput:
    """The floating-point operations a second that this device reaches in plain products of a variant's sizes."""

    rates: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def of(self, variant: LanguageVariant, device: torch.device, precision: torch.dtype) -> float:
        """Measured once for each size, in a fifth of a second."""
        rows = variant.batch_size * variant.sequence_length // variant.accumulation
        size = (rows, variant.width, variant.mlp_width)
        if size not in self.rates:
            x = torch.randn((rows, variant.width), device=device).to(precision)[None]
            weight = torch.randn((variant.mlp_width, variant.width), device=device).to(precision)[None]
            products.linear(x, weight)
            _wait(device)
            count, began = 0, time.perf_counter()
            while time.perf_counter() - began < 0.2:
                for _ in range(4):
                    products.linear(x, weight)
                _wait(device)
                count += 4
            self.rates[size] = 2 * math.prod(size) * count / (time.perf_counter() - began)
        return self.rates[size]


class LanguageWorkshop(Workshop):
    """The text of an experiment and the training of its networks.

    Raises:
        InputError: the text or the device cannot be had, or does not suit the experiment.
        JobError: the tokens cannot be kept.
    """

    experiment: LanguageExperiment

    def __init__(self, experiment: LanguageExperiment, device: str, say: Callable[[str], None] = _hush) -> None:
        """`say` gets a line for everything long that happens to the text."""
        self.device = devices.resolve(device)
        self.experiment = experiment
        self.precision = _precision(experiment, self.device)
        self.threads = max(1, devices.worker_count(self.device) // len(experiment.networks))
        self.corpus = corpora.load(experiment.data, say)
        for variant in experiment.variants:
            self.corpus.require(variant.sequence_length)
            count = (len(self.corpus.train) - 1) // variant.sequence_length
            if count < variant.batch_size:
                raise InputError(
                    f"variant {variant.name!r}: a batch of {variant.batch_size} sequences of {variant.sequence_length} "
                    f"tokens is more than the {len(self.corpus.train)} tokens of the text",
                    "lower batch_size or sequence_length, or give more text with --set data.path=…",
                )
        self._throughput = _Throughput()

    def description(self, device: str) -> str:
        """How many networks on how many tokens, and of which text."""
        networks = self.experiment.networks
        seen = sum(variant.steps * variant.batch_size * variant.sequence_length for variant, _ in networks)
        return (
            f"{len(networks)} networks, {seen:,} tokens to train on in {self.experiment.precision}, {device}; "
            f"text: {self.corpus.source}"
        )

    def stacks(self, networks: Sequence[tuple[LanguageVariant, int]]) -> list["LanguageTraining"]:
        """These networks, to be trained from the beginning."""
        places = {(variant.name, seed): place for place, (variant, seed) in enumerate(self.experiment.networks)}
        return [
            LanguageTraining(places[variant.name, seed], variant, seed, self.experiment, self)
            for variant, seed in networks
        ]

    def restored(self, stored: checkpoints.Stored, names: Sequence[checkpoints.Network]) -> "LanguageTraining":
        """A network as its checkpoint has it. Raises InputError where that is not what it should be, or JobError."""
        (name,) = names
        variant = next(variant for variant in self.experiment.variants if variant.name == name[0])
        (stack,) = self.stacks([(variant, name[1])])
        # Where memory runs out is said by the step.
        stack.step = stored.facts.step
        try:
            stack.restore(stored.facts.step, checkpoints.read(stored))
        except (KeyError, MemoryError, RuntimeError, ValueError) as error:
            self.explain(error, stack)
            raise InputError(f"it does not fit: {str(error).splitlines()[0]}", "") from error
        return stack

    def rate(self, variant: LanguageVariant) -> float:
        """Floating-point operations a second of plain products here."""
        return self._throughput.of(variant, self.device, self.precision)

    def explain(self, error: Exception, stack: "LanguageTraining") -> None:
        if is_out_of_memory(error):
            raise JobError(
                f"out of memory while training {stack.variant.name} at step {stack.step}",
                "raise accumulation (a batch in more parts), or lower sequence_length, width or depth; "
                "`geocont-tui resume` goes on from the last checkpoint",
            ) from error


class LanguageTraining:
    """One network in training."""

    def __init__(
        self,
        number: int,
        variant: LanguageVariant,
        seed: int,
        experiment: LanguageExperiment,
        workshop: LanguageWorkshop,
    ) -> None:
        """`number` is the network's place in the experiment."""
        self.number = number
        self.variant = variant
        self.seed = seed
        self.step = self.kept_step = 0
        self.training_seconds = self.probe_seconds = self.evaluation_seconds = 0.0
        self.network_steps = 0
        self.is_over = False
        self._workshop = workshop
        self._device = workshop.device
        self._probe_device = torch.device("cpu") if self._device.type == "mps" else self._device
        self._settings = experiment.probes
        self._schedule = probes.schedule(variant.steps, experiment.probes)
        self._exact = probes.exact_steps(variant.steps, experiment.probes)
        self._evaluated = _evaluation_steps(self._schedule, variant.steps)
        self._decoder = language_model.Decoder(
            variant,
            language_model.Rotary.make(variant.sequence_length, variant.width // variant.heads, self._device),
            workshop.precision,
        )
        self._started = False
        self._loss, self._loss_sum, self._batches = math.nan, 0.0, 0

    @property
    def names(self) -> list[checkpoints.Network]:
        """Variant and seed, until the network is done or has diverged."""
        return [] if self.is_over else [(self.variant.name, self.seed)]

    @property
    def tokens(self) -> int:
        """How many it has been trained on in this process."""
        return self.network_steps * self.variant.batch_size * self.variant.sequence_length

    @property
    def progress(self) -> float:
        """The part of the work that is done, 0…1."""
        return self.step / self.variant.steps

    def positions(self) -> list[NetworkProgress]:
        """Where the network is."""
        if self.is_over:
            return []
        return [NetworkProgress(variant=self.variant.name, seed=self.seed, step=self.step, loss=_number(self._loss))]

    def advance(self, seconds: float, stop: threading.Event) -> list[Event]:
        """Train for about `seconds`, or until something was measured; return what happened."""
        if not self._started:
            self._start(self._initial())
        events: list[Event] = []
        began = time.perf_counter()
        measured = self.probe_seconds + self.evaluation_seconds
        while not self.is_over and not stop.is_set():
            is_probed = self.step in self._schedule_set
            self._compute_gradients(is_probed)
            if not math.isfinite(self._loss):
                events.append(
                    NetworkDiverged(
                        variant=self.variant.name,
                        seed=self.seed,
                        step=self.step,
                        reason="the training loss was not finite",
                    )
                )
                self._release()
                break
            if is_probed:
                events += self._probe()
            if self.step == self.variant.steps:
                spent = self.probe_seconds + self.evaluation_seconds - measured
                events += self._finish(self.training_seconds + time.perf_counter() - began - spent)
                break
            # A step that was begun is ended, so that a checkpoint lies between two.
            self._update()
            if is_probed or time.perf_counter() - began > seconds:
                break
        measured = self.probe_seconds + self.evaluation_seconds - measured
        self.training_seconds += time.perf_counter() - began - measured
        return events

    def _initial(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed * _STREAMS_PER_SEED + _PARAMETER_STREAM)
        return language_model.initial_parameters(self.variant, self._workshop.corpus.vocabulary, generator)

    def _start(self, initial: Mapping[str, Tensor], parameters: Mapping[str, Tensor] | None = None) -> None:
        """Place the parameters, and follow the projections from the initial ones on."""
        began = time.perf_counter()
        names = language_model.projection_shapes(self.variant)
        wanted = language_model.shapes(self.variant, self._workshop.corpus.vocabulary)
        now = initial if parameters is None else parameters
        if {name: tuple(value.shape) for name, value in now.items()} != wanted:
            raise ValueError("parameters of other shapes")
        self._projections = {name: now[name].to(self._device, copy=True) for name in names}
        self._gradients = {
            name: products.WeightGradients(torch.zeros_like(value)[:, None], torch.zeros_like(value)[:, None])
            for name, value in self._projections.items()
        }
        self._leaves: dict[str, Tensor] = {}
        for name, value in now.items():
            if name not in names:
                leaf = value.to(self._device, copy=True).requires_grad_()
                leaf.grad = torch.zeros_like(leaf)
                self._leaves[name] = leaf
        self._optimizers = self._make_optimizers()
        self._followers = {
            name: probes.Follower(
                initial[name][None].to(self._probe_device, copy=True),
                None,
                [self.seed * _STREAMS_PER_SEED + _PROBE_STREAM + place],
                self._settings,
            )
            for place, name in enumerate(names)
        }
        self._factor = math.nan
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)
        self._schedule_set = set(self._schedule)
        self.probe_seconds += time.perf_counter() - began
        self._started = True

    def _make_optimizers(self) -> list[Optimizer]:
        """Of the matrices, and of the gains of the norms, which are not drawn to zero."""
        matrices = [(value, self._gradients[name].values[:, 0]) for name, value in self._projections.items()]
        vectors: list[tuple[Tensor, Tensor]] = []
        for leaf in self._leaves.values():
            assert leaf.grad is not None
            is_matrix = leaf.ndim == 2 and len(leaf) > self.variant.depth
            (matrices if is_matrix else vectors).append((leaf.detach(), leaf.grad))
        settings = self.variant.optimizer
        groups = [(settings, matrices), (msgspec.structs.replace(settings, weight_decay=0.0), vectors)]
        return [
            Optimizer(its_settings, [value for value, _ in group], [gradient for _, gradient in group])
            for its_settings, group in groups
            if group
        ]

    def _parameters(self) -> dict[str, Tensor]:
        return self._projections | {name: leaf.detach() for name, leaf in self._leaves.items()}

    def state(self) -> dict[str, Tensor]:
        """What the next step needs beside seeds, by name, between two steps; `restore` takes it."""
        found = {f"parameter.{name}": value for name, value in self._parameters().items()}
        for name, gradients in self._gradients.items():
            # A sum is the same whenever its parts are added, as long as their order is.
            gradients.settle()
            found[f"cumulative.{name}"] = gradients.totals
            found |= {f"follower.{name}.{key}": value for key, value in self._followers[name].state().items()}
        for index, remembered in enumerate(self._optimizer_states()):
            found |= {f"optimizer.{index}.{key}": value for key, value in remembered.items()}
        counted = torch.tensor([self._loss, self._loss_sum, self._batches], dtype=torch.float64)
        return found | {"counted": counted}

    def restore(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Go on after `step` updates as the same network that had this state.

        Raises:
            KeyError, RuntimeError, ValueError: it is the state of another network.
        """
        self._start(self._initial(), _under("parameter.", state))
        for name, gradients in self._gradients.items():
            gradients.totals.copy_(state[f"cumulative.{name}"])
            self._followers[name].restore(_under(f"follower.{name}.", state))
        for index, remembered in enumerate(self._optimizer_states()):
            found = _under(f"optimizer.{index}.", state)
            remembered.update({key: value.to(self._device, copy=True) for key, value in found.items()})
        self._loss, self._loss_sum, batches = state["counted"].tolist()
        self._batches = int(batches)
        self.step = self.kept_step = step

    def _optimizer_states(self) -> list[dict[str, Tensor]]:
        return [state for optimizer in self._optimizers for state in optimizer.states]

    def _compute_gradients(self, is_probed: bool) -> None:
        """Forward and backward on the sequences of this step; the parameters stay."""
        for leaf in self._leaves.values():
            if leaf.grad is not None:
                leaf.grad.zero_()
        factors: list[Tensor] | None = [] if is_probed else None
        parts = self._sequences().chunk(self.variant.accumulation)
        losses = []
        for place, part in enumerate(parts):
            for gradients in self._gradients.values():
                if place:
                    gradients.go_on()
                else:
                    # What is measured of a step is the sum before it.
                    gradients.begin(is_measured=is_probed)
            loss = self._decoder.losses(self._with_leaves(), part, self._gradients, factors)
            (loss / len(parts)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        self._loss = float(torch.stack(losses).mean())
        self._loss_sum += self._loss
        self._batches += 1
        self.probe_seconds += sum(gradients.spent() for gradients in self._gradients.values())
        self._factor = float(torch.stack(factors).mean()) if factors else math.nan

    def _with_leaves(self) -> dict[str, Tensor]:
        return self._projections | self._leaves

    def _sequences(self) -> Int[Tensor, "batch longer"]:
        """The sequences of this step, each with the token after it; the order of the text is drawn anew each epoch."""
        length, size = self.variant.sequence_length, self.variant.batch_size
        text = self._workshop.corpus.train
        count = (len(text) - 1) // length
        epoch, batch = divmod(self.step, count // size)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * _STREAMS_PER_SEED + _FIRST_EPOCH_STREAM + epoch)
            self._order = torch.randperm(count, generator=generator)
            self._epoch = epoch
        chosen = self._order[batch * size : (batch + 1) * size].tolist()
        return _windows(text, chosen, length).to(self._device, non_blocking=True)

    def _update(self) -> None:
        """Clip the gradient where asked and take the optimiser's step."""
        limit = self.variant.optimizer.gradient_clip
        if limit:
            for gradients in self._gradients.values():
                # The cumulative gradient is that of the loss.
                gradients.settle()
            values = [gradient for optimizer in self._optimizers for gradient in optimizer.gradients]
            norm = torch.nn.utils.get_total_norm(values)
            torch._foreach_mul_(values, (limit / (norm + 1e-6)).clamp_max(1.0))
        for optimizer in self._optimizers:
            optimizer.step(language_model.learning_rate(self.variant, self.step))
        self.step += 1
        self.network_steps += 1

    def _probe(self) -> list[Event]:
        """Measure every projection at this step."""
        held_out = self._evaluate(_SOME_SEQUENCES) if self.step in self._evaluated else None
        began = time.perf_counter()
        events: list[Event] = []
        factors = torch.tensor([self._factor], device=self._probe_device)
        for name, follower in self._followers.items():
            gradients = self._gradients[name]
            (measurement,) = follower.measure(
                self._projections[name][None].to(self._probe_device),
                gradients.values.transpose(0, 1).to(self._probe_device),
                gradients.totals.transpose(0, 1).to(self._probe_device),
                factors,
                exact=self.step in self._exact,
            )
            events.append(
                measurement.event(
                    variant=self.variant.name,
                    seed=self.seed,
                    step=self.step,
                    projection=name,
                    loss=_number(self._loss_sum / self._batches),
                    accuracy=None,
                    held_out_loss=held_out,
                )
            )
        self._loss_sum, self._batches = 0.0, 0
        self.probe_seconds += time.perf_counter() - began
        return events

    def _evaluate(self, most: int) -> float | None:
        """Mean cross-entropy on held-out sequences, evenly spread over that text, nats a token."""
        began = time.perf_counter()
        length, text = self.variant.sequence_length, self._workshop.corpus.held_out
        count = max((len(text) - 1) // length, 1)
        used = min(count, most)
        chosen = [place * count // used for place in range(used)]
        size = max(self.variant.batch_size // self.variant.accumulation, 1)
        total = 0.0
        with torch.no_grad():
            for start in range(0, used, size):
                part = _windows(text, chosen[start : start + size], length).to(self._device)
                total += float(self._decoder.losses(self._parameters(), part)) * len(part)
        self.evaluation_seconds += time.perf_counter() - began
        return _number(total / used)

    def _finish(self, seconds: float) -> list[Event]:
        """Evaluate, save and let go; `seconds` were spent on training in this process."""
        loss = self._evaluate(_MOST_SEQUENCES)
        events: list[Event] = [
            NetworkFinished(
                variant=self.variant.name, seed=self.seed, step=self.step, test_loss=loss, test_accuracy=None
            )
        ]
        if self.network_steps and seconds > 0:
            done = language_model.operations(self.variant, self._workshop.corpus.vocabulary)
            rate = done * self.network_steps / seconds
            text = (
                f"{self.variant.name} seed {self.seed}: {self.tokens / seconds:,.0f} tokens/s, "
                f"{rate / 1e9:,.1f} GFLOP/s, {rate / self._workshop.rate(self.variant):.0%} of this device's rate in "
                "plain products of these sizes"
            )
            events.append(Message(level="info", text=text, time=time.time()))
        if self._workshop.folder is not None:
            folder = self._workshop.folder / MODELS / language_model.folder_name(self.variant.name, self.seed)
            try:
                tokenizer = self._workshop.corpus.tokenizer.read_bytes()
                language_model.save(folder, self.variant, self._parameters(), tokenizer)
            except OSError as error:
                text = f"{folder} cannot be written ({error.strerror or error}): the network is not kept"
                events.append(Message(level="warning", text=text, time=time.time()))
        self._release()
        return events

    def _release(self) -> None:
        """Let go of everything large."""
        self.is_over = True
        del self._projections, self._gradients, self._leaves, self._optimizers, self._followers


def _evaluation_steps(schedule: Sequence[int], steps: int) -> set[int]:
    """Steps of the schedule at which held-out text is evaluated: the first, the last, and those between far apart."""
    found, latest = {0, steps}, 0
    for step in schedule:
        if step - latest >= steps / _EVALUATIONS:
            found.add(step)
            latest = step
    return found


def _windows(text: np.ndarray, chosen: Sequence[int], length: int) -> Int[Tensor, "batch longer"]:
    rows = np.stack([np.asarray(text[place * length : place * length + length + 1]) for place in chosen])
    return torch.from_numpy(rows.astype(np.int64))


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _precision(experiment: LanguageExperiment, device: torch.device) -> torch.dtype:
    """That of the products. Raises InputError where bf16 would be slower than float32."""
    if experiment.precision == "float32":
        return torch.float32
    if device.type == "cuda":
        is_fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu":
        is_fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        is_fast = False
    if not is_fast:
        raise InputError(
            f"precision: {devices.describe(device)} has no instructions for bf16, so that it would be slower there",
            "leave precision at float32",
        )
    return torch.bfloat16
