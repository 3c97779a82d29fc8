"""An analysis against a full float64 singular value decomposition of the same weights, every matrix and every pair.

    python tests/benchmarks/accuracy.py MODEL            a folder or file, as `geocont-tui analyze` takes it
    python tests/benchmarks/accuracy.py --self-check     a small model made here

What is quantised is decoded by the same reader on both sides: this measures the decompositions, not the quantisation.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from geocont.analysis import analyze
from geocont.events import MatrixMeasured, PairMeasured
from geocont.weights import layouts, local
from geocont.weights.quantization import Weights
from safetensors.torch import save_file

Key = tuple[str, str, int]


def decompose(model: Path) -> dict[Key, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """u1, the singular values and v1 of every projection, in float64."""
    found = {}
    checkpoint = local.open_checkpoint(model)
    try:
        weights = Weights(checkpoint)
        for placement in layouts.plan(weights.items, checkpoint.config, layouts.read_layouts()).placements:
            if placement.status != "ok" or placement.experts:
                continue
            [matrix] = placement.matrices(weights.read)
            left, sigma, right = torch.linalg.svd(matrix.double(), full_matrices=False)
            found[placement.stack, placement.projection, placement.layer] = (left[:, 0], sigma, right[0])
    finally:
        checkpoint.close()
    return found


def compare(model: Path) -> tuple[dict[str, list[float]], int, int]:
    """Differences by name, the pairs compared, and the pairs that the analysis says are not unique."""
    truth = decompose(model)
    differences: dict[str, list[float]] = {"v1 cosine": [], "u1 cosine": [], "σ1 (relative)": [], "σ2 (relative)": []}
    pairs = left_out = 0
    for event in analyze(str(model), use_cache=False):
        if isinstance(event, MatrixMeasured) and event.status == "ok":
            sigma = truth[event.stack, event.projection, event.layer][1]
            for number in (0, 1):
                wrong = abs(event.singular_values[number] / sigma[number].item() - 1)
                differences[f"σ{number + 1} (relative)"].append(wrong)
        if not isinstance(event, PairMeasured):
            continue
        if event.status != "ok":
            left_out += 1
            continue
        pairs += 1
        first, second = (truth[event.stack, event.projection, layer] for layer in (event.layer_a, event.layer_b))
        for name, found, place in (("v1 cosine", event.v1_cosine, 2), ("u1 cosine", event.u1_cosine, 0)):
            if found is not None:
                differences[name].append(abs(found - (first[place] @ second[place]).abs().item()))
    return differences, pairs, left_out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--self-check", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_check:
        return self_check()
    if arguments.model is None:
        parser.error("give a model, or --self-check")
    differences, pairs, left_out = compare(arguments.model)
    print(f"{arguments.model.name}: {pairs} adjacent pairs compared, {left_out} not unique or n/a")
    for name, values in differences.items():
        largest, mean = max(values), sum(values) / len(values)
        print(f"{name:16} largest difference {largest:.1e}, mean {mean:.1e} over {len(values)}")
    return 0


def self_check() -> int:
    """The analysis of a small Llama agrees with float64."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(3):
        for name, shape in (
            ("self_attn.q_proj", (192, 192)),
            ("mlp.up_proj", (400, 192)),
            ("mlp.down_proj", (192, 400)),
        ):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.randn(*shape, generator=generator)
            tensors[f"model.layers.{layer}.{name}.weight"][:, 0] *= 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(tensors, path)
        differences, pairs, left_out = compare(path)
    assert pairs + left_out == 6, (pairs, left_out)
    assert pairs >= 4, pairs
    assert max(differences["v1 cosine"] + differences["u1 cosine"]) < 1e-3, differences
    assert max(differences["σ1 (relative)"]) < 1e-5, differences
    print("accuracy: self-check passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
