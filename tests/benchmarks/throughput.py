"""Training throughput: this tool, probes included, against the plain loop a user would write, probes left out.

Both train the networks of an experiment in this process on the same machine: here all networks spread over the cores;
there one nn.Module after the other with torch's Dataset and DataLoader, Adam and default threads. The plain loop is
timed for some steps of each variant before and after our run, since its rate does not change with length. The rate of
matrix products is that of the three products of a hidden layer, one thread a core, timed before and after as well.

    python tests/benchmarks/throughput.py                  the default experiment, about 4 minutes on 2 cores
    python tests/benchmarks/throughput.py --scale 0.1      a tenth of its steps
    python tests/benchmarks/throughput.py --self-check     tiny; only checks that both sides do the same work
"""

import argparse
import os
import sys
import threading
import time

import msgspec
import torch
from geocont import devices
from geocont.ablations import datasets, residual_mlp
from geocont.ablations.crew import train
from geocont.ablations.experiment import Adam, Data, Experiment, Normal, Probes, Variant, read
from geocont.events import NetworkFinished, RunFinished
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, images, labels) -> None:
        pixels = torch.from_numpy(images).float().flatten(1) / 255
        self.images, self.labels = (pixels - 0.1307) / 0.3081, torch.from_numpy(labels).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Network(torch.nn.Module):
    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        self.first = torch.nn.Linear(784, variant.width)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(variant.width, variant.width, bias=variant.bias) for _ in range(variant.depth)
        )
        for layer in self.layers:
            torch.nn.init.normal_(layer.weight, std=variant.initialization.std)
        self.last = torch.nn.Linear(variant.width, 10)
        self.activation = residual_mlp.ACTIVATIONS[variant.activation]
        self.normalization = residual_mlp.NORMALIZATIONS[variant.normalization]

    def forward(self, x):
        h = self.first(x)
        for layer in self.layers:
            change = self.activation(layer(self.normalization(h)))
            h = h + change if self.variant.residual else change
        return self.last(h)


def plain_loop(variant: Variant, data: Dataset, steps: int) -> tuple[float, float]:
    """Seconds per step, without the first few steps, and the loss of the last step."""
    torch.manual_seed(0)
    network = Network(variant)
    optimizer = torch.optim.Adam(network.parameters(), lr=variant.optimizer.learning_rate)
    loader = DataLoader(data, batch_size=variant.batch_size, shuffle=True, drop_last=True)
    done, warm, began, loss = 0, min(5, steps // 2), 0.0, torch.tensor(0.0)
    while done < steps:
        for images, labels in loader:
            if done == warm:
                began = time.perf_counter()
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return (time.perf_counter() - began) / (steps - warm), loss.item()


def plain_seconds(experiment: Experiment, data: Dataset, steps: int) -> float:
    """What the plain loop would need for the whole experiment, from its rate over `steps` steps of each variant."""
    return sum(
        plain_loop(variant, data, steps)[0] * variant.steps * experiment.seeds for variant in experiment.variants
    )


def product_rate(rows: int, inputs: int, outputs: int, seconds: float) -> float:
    """Floating-point operations a second in the three products of a linear layer, one thread on each core."""
    counts: list[int] = []

    def work() -> None:
        torch.set_num_threads(1)
        x, weight, gradient = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            torch.mm(x, weight.T)
            torch.mm(gradient, weight)
            torch.mm(gradient.T, x)
            count += 3
        counts.append(count)

    before = torch.get_num_threads()
    threads = [threading.Thread(target=work) for _ in range(devices.worker_count(torch.device("cpu")))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(before)
    return sum(counts) * 2 * rows * inputs * outputs / seconds


def products(variant: Variant, test_images: int) -> float:
    """Floating-point operations in the matrix products of one network: its training steps and the final evaluation."""
    shape = residual_mlp.shape_of(variant, 784, 10)
    evaluation = 2 * test_images * (784 * variant.width + variant.depth * variant.width**2 + variant.width * 10)
    return shape.product_operations * variant.steps + evaluation


def ours(experiment: Experiment) -> tuple[RunFinished, dict[str, float]]:
    losses = {}
    for event in train(experiment, "cpu"):
        if isinstance(event, NetworkFinished):
            losses[event.variant] = event.test_loss or float("nan")
        if isinstance(event, RunFinished):
            return event, losses
    raise AssertionError("a run ends with RunFinished")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default="mlp")
    parser.add_argument("--scale", type=float, default=1.0, help="train this part of the steps")
    parser.add_argument(
        "--plain-steps", type=int, default=60, help="steps of the plain loop a variant, before and after"
    )
    parser.add_argument("--self-check", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_check:
        return self_check()
    experiment = read(arguments.experiment)
    scaled = tuple(
        msgspec.structs.replace(v, steps=max(1, round(v.steps * arguments.scale))) for v in experiment.variants
    )
    experiment = msgspec.structs.replace(experiment, variants=scaled)
    images = datasets.load(experiment.data)
    data = Digits(images.train_images, images.train_labels)
    first = experiment.variants[0]

    rates = [product_rate(first.batch_size, first.width, first.width, 2.0)]
    plain = [plain_seconds(experiment, data, arguments.plain_steps)]
    finished, _ = ours(experiment)
    plain.append(plain_seconds(experiment, data, arguments.plain_steps))
    rates.append(product_rate(first.batch_size, first.width, first.width, 2.0))

    steps = sum(variant.steps for variant in experiment.variants) * experiment.seeds
    operations = sum(products(variant, len(images.test_labels)) for variant in experiment.variants) * experiment.seeds
    theirs, rate = sum(plain) / 2, sum(rates) / 2
    training, probing = finished.training_seconds, finished.probe_seconds
    seconds, reached = finished.elapsed, operations / finished.elapsed / rate
    print(f"{experiment.name}: {steps} network-steps on {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"ours, with probes      {seconds:8.1f} s   {steps / seconds:6.1f} network-steps/s")
    print(f"plain loop, no probes  {theirs:8.1f} s   {steps / theirs:6.1f} network-steps/s", end="   ")
    print(f"(before {plain[0]:.0f} s, after {plain[1]:.0f} s)")
    print(f"ratio                  {theirs / seconds:8.2f}")
    print(f"float32 product rate   {rate / 1e9:8.1f} GFLOP/s, of which the whole run reached {reached:.0%}")
    print(f"probes                 {probing / training:8.1%} of the training time")
    return 0


def self_check() -> int:
    """Both sides learn the same task to about the same loss, and nothing is left out of the count."""
    variant = Variant(name="a", depth=4, width=32, initialization=Normal(std=0.1), optimizer=Adam(), steps=60)
    experiment = Experiment(
        name="check", seeds=2, data=Data(images=2000), probes=Probes(leading=4), variants=(variant,)
    )
    images = datasets.load(experiment.data)
    _, loss = plain_loop(variant, Digits(images.train_images, images.train_labels), 60)
    finished, losses = ours(experiment)
    assert finished.network_steps == 120, finished
    assert abs(loss - losses["a"]) < 0.35, (loss, losses)
    assert product_rate(128, 32, 32, 0.1) > 0
    print("throughput: self-check passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
