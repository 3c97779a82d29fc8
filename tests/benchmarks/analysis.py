"""Analysing layers of Llama-3.1-8B shapes: seconds against reading their bytes, memory, accuracy, and WeightWatcher.

The checkpoint is one bfloat16 safetensors file with heavy-tailed matrices, σ1/σ2 = 1.2 (benchmarks/spectra.py), written
to a temporary folder. "Cold" means that the file has left the page cache (posix_fadvise), "read" is the reader of this
tool alone on the same tensors. Each analysis runs in a process of its own, with all cores, results not kept; its peak
memory counts from after torch was imported and has multiplied. WeightWatcher is measured where it is installed.

    python tests/benchmarks/analysis.py                  4 layers, 1.7 GB, about 2 minutes on 2 cores
    python tests/benchmarks/analysis.py --layers 7       3.05 GB, for the memory figure
    python tests/benchmarks/analysis.py --weightwatcher  minutes more
    python tests/benchmarks/analysis.py --self-check     tiny; only checks that the numbers are right
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from geocont import analysis
from geocont.events import MatrixMeasured, PairMeasured, RunFinished
from geocont.weights import local
from geocont.weights.quantization import Weights
from safetensors.torch import save_file
from spectra import heavy_tailed


def shapes(hidden: int) -> dict[str, tuple[int, int]]:
    """Of one layer of a Llama-3.1-8B, whose hidden size is 4096."""
    wide, keys = hidden * 7 // 2, hidden // 4
    return {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Heavy-tailed, one of the two numbers a power of two."""
    if columns & (columns - 1):
        return heavy_tailed(columns, rows, 1.2, seed).T.contiguous()
    return heavy_tailed(rows, columns, 1.2, seed)


def write(folder: Path, hidden: int, layers: int, distinct: bool = False) -> int:
    """Write the checkpoint; its bytes. Unless `distinct`, layers differ by the order of their rows, to save time."""
    tensors = {}
    for number, (name, shape) in enumerate(shapes(hidden).items()):
        for layer in range(layers):
            if distinct or layer == 0:
                made = matrix(*shape, seed=100 * layer + number)
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.roll(made, layer, 0)
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": hidden, "num_attention_heads": 32, "num_key_value_heads": 8}
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    return sum(tensor.nbytes for tensor in tensors.values())


def drop_from_cache(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def peak() -> int:
    """Most bytes that this program has had in memory; what getrusage says outlives the parent that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(folder: Path, top_k: int) -> None:
    """One analysis in this process; prints seconds, bytes that the peak grew by, and the longest wait for an event."""
    torch.randn(512, 512) @ torch.randn(512, 512)
    before, began = peak(), time.perf_counter()
    longest, latest, event = 0.0, began, None
    for event in analysis.analyze(str(folder), top_k=top_k, use_cache=False, device="cpu"):  # noqa: B007 - the last
        longest, latest = max(longest, time.perf_counter() - latest), time.perf_counter()
    assert isinstance(event, RunFinished), event
    assert event.status == "done", event
    print(json.dumps([time.perf_counter() - began, peak() - before, longest]))


def read(folder: Path) -> None:
    """Read the same tensors with the same reader; prints seconds."""
    weights = Weights(local.open_checkpoint(folder))
    began = time.perf_counter()
    for name in weights.items:
        weights.read(name)
    print(json.dumps([time.perf_counter() - began]))


def in_a_process(*arguments: str) -> list[float]:
    command = [sys.executable, __file__, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def rounds(folder: Path, count: int, top_k: int, cold: bool) -> tuple[float, float, float, float]:
    """Medians: seconds of the analysis and of reading; the largest growth of memory and wait for an event."""
    analysed, reads = [], []
    for _ in range(count):
        if cold:
            drop_from_cache(folder)
        reads.append(in_a_process("--read", str(folder))[0])
        if cold:
            drop_from_cache(folder)
        analysed.append(in_a_process("--measure", str(folder), "--top-k", str(top_k)))
    return (
        statistics.median(one[0] for one in analysed),
        statistics.median(reads),
        max(one[1] for one in analysed),
        max(one[2] for one in analysed),
    )


def largest_error(folder: Path) -> tuple[float, int]:
    """The largest difference of any v1 or u1 cosine from float64 LAPACK, and how many were compared."""
    checkpoint = local.open_checkpoint(folder)
    truth: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name in checkpoint.tensors:
        left, _, right = torch.linalg.svd(checkpoint.read(name).double(), full_matrices=False)
        truth[name] = left[:, 0], right[0]
    events = list(analysis.analyze(str(folder), use_cache=False, device="cpu"))
    tensors = {(plan.projection, plan.layer): plan.tensors[0] for plan in events[0].matrices}
    errors = []
    for event in events:
        if isinstance(event, MatrixMeasured):
            assert event.status == "ok", event
            u, v = truth[tensors[event.projection, event.layer]]
            for other, v1, u1 in zip(event.others, event.v1_cosines, event.u1_cosines, strict=True):
                other_u, other_v = truth[tensors[event.projection, other]]
                errors += [abs(v1 - abs(float(v @ other_v))), abs(u1 - abs(float(u @ other_u)))]
    assert sum(isinstance(event, PairMeasured) for event in events) == 7 * (len(tensors) // 7 - 1)
    return max(errors), len(errors)


def weightwatcher_seconds(hidden: int) -> float:
    """WeightWatcher's default analysis of the matrices of one layer."""
    import weightwatcher

    layers = []
    for number, (rows, columns) in enumerate(shapes(hidden).values()):
        layer = torch.nn.Linear(columns, rows, bias=False)
        layer.weight.data = matrix(rows, columns, seed=number).float()
        layers.append(layer)
    began = time.perf_counter()
    weightwatcher.WeightWatcher(model=torch.nn.Sequential(*layers)).analyze()
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=4096, help="a power of two")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weightwatcher", action="store_true")
    parser.add_argument("--self-check", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--top-k", type=int, default=8, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        measure(arguments.measure, arguments.top_k)
        return 0
    if arguments.read is not None:
        read(arguments.read)
        return 0
    if arguments.self_check:
        return self_check()
    print(f"torch {torch.__version__}, {len(os.sched_getaffinity(0))} cores")
    layers = arguments.layers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder, arguments.hidden, layers)
        allowed = 2 * 4 * max(rows * columns for rows, columns in shapes(arguments.hidden).values()) + 150e6
        print(f"{layers} layers, {size / 1e9:.2f} GB")
        ours: dict[int, float] = {}
        for top_k, cold in ((8, True), (8, False), (1, True), (1, False)):
            taken, reading, growth, longest = rounds(folder, arguments.rounds, top_k, cold)
            ours[top_k] = taken / layers
            print(
                f"{'cold' if cold else 'warm'}, {top_k} vectors a side: {taken / layers:6.2f} s a layer, "
                f"{taken / reading:5.1f} × read ({reading / layers:.3f} s), memory grew by {growth / 1e6:.0f} MB "
                f"(allowed {allowed / 1e6:.0f}), longest wait for an event {longest:.2f} s"
            )
        if arguments.weightwatcher:
            taken = weightwatcher_seconds(arguments.hidden)
            ratios = ", ".join(f"{taken / own:.0f} × with {top_k} vectors a side" for top_k, own in ours.items())
            print(f"WeightWatcher: {taken:.0f} s a layer; the warm analysis is faster {ratios}")
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), 512, 3, distinct=True)
        error, count = largest_error(Path(name))
        print(f"cosines against float64 LAPACK, hidden size 512: off by at most {error:.1e} in {count}")
    return 0


def self_check() -> int:
    """The cosines of a tiny checkpoint are right; analysing and reading it in a process of its own works."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, 128, 3, distinct=True)
        error, count = largest_error(folder)
        assert count == 7 * 3 * 2, count
        assert error < 1e-4, error
        taken, reading, growth, longest = rounds(folder, 1, 8, cold=True)
        assert 0 < reading < taken, (reading, taken)
        assert 0 <= longest < taken, longest
        assert 0 < growth < 150e6, growth
    print("analysis: self-check passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
