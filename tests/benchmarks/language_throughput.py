"""Training of language models: this tool, probes and journal included, against a plain loop over LlamaForCausalLM.

Both train the same network on the same text in float32, in this process and on the same cores: here as many networks
as there are cores, spread over them; there one network on all cores, with AdamW, clipped gradients and torch's
defaults, timed for some steps before and after. `--precision bf16` changes our side only. The rate of matrix products
is that of the three products of the MLP, one thread a core, timed before and after as well.

    python tests/benchmarks/language_throughput.py                    the network of transformer_small, about 4 minutes
    python tests/benchmarks/language_throughput.py --precision bf16
    python tests/benchmarks/language_throughput.py --self-check       tiny; both sides learn alike
"""

import argparse
import os
import pydoc_data.topics
import shutil
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import torch
from geocont import devices
from geocont.ablations import corpora, language_model
from geocont.ablations.crew import train
from geocont.ablations.experiment import LanguageExperiment, LanguageVariant, Precision, Probes, Text, read
from geocont.events import NetworkFinished, RunFinished
from geocont.runs import Recording
from throughput import product_rate
from transformers import LlamaConfig, LlamaForCausalLM


class Sequences(torch.utils.data.Dataset):
    def __init__(self, ids, length: int) -> None:
        self.ids, self.length = ids, length

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, index):
        begin = index * self.length
        # transformers shifts the labels itself: one token more gives as many losses as ours.
        return torch.from_numpy(self.ids[begin : begin + self.length + 1].astype(np.int64))


def plain_loop(variant: LanguageVariant, corpus: corpora.Corpus, steps: int) -> tuple[float, float]:
    """Seconds per step, without the first few steps, and the loss of the last step."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=corpus.vocabulary,
        hidden_size=variant.width,
        intermediate_size=variant.mlp_width,
        num_hidden_layers=variant.depth,
        num_attention_heads=variant.heads,
        num_key_value_heads=variant.key_value_heads,
        max_position_embeddings=variant.sequence_length + 1,
        initializer_range=variant.initialization.std,
    )
    model = LlamaForCausalLM(config)
    settings = variant.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )
    loader = torch.utils.data.DataLoader(
        Sequences(corpus.train, variant.sequence_length), batch_size=variant.batch_size, shuffle=True, drop_last=True
    )
    done, warm, began, loss = 0, min(5, steps // 2), 0.0, torch.tensor(0.0)
    while done < steps:
        for tokens in loader:
            if done == warm:
                began = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = language_model.learning_rate(variant, done)
            optimizer.zero_grad()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
            optimizer.step()
            done += 1
            if done == steps:
                break
    return (time.perf_counter() - began) / (steps - warm), loss.item()


def ours(experiment: LanguageExperiment, folder: Path) -> tuple[RunFinished, list[float]]:
    folder.mkdir()
    losses = []
    with closing(Recording(train(experiment, "cpu", folder=folder), folder)) as recording:
        for event in recording:
            if isinstance(event, NetworkFinished):
                losses.append(event.test_loss or float("nan"))
            if isinstance(event, RunFinished):
                return event, losses
    raise AssertionError("a run ends with RunFinished")


def english(folder: Path) -> Path:
    """Real text that every Python has: what `help` says of the language."""
    path = folder / "text.txt"
    path.write_text("\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a text or a folder of texts; default: Python's own documentation")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--plain-steps", type=int, default=60, help="steps of the plain loop, before and after")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--self-check", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    # What a benchmark makes is not kept for later.
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    try:
        text = arguments.text or str(english(folder))
        return self_check(text, folder) if arguments.self_check else measure(arguments, text, folder)
    finally:
        shutil.rmtree(folder)


def measure(arguments: argparse.Namespace, text: str, folder: Path) -> int:
    small = read("transformer_small")
    assert isinstance(small, LanguageExperiment)
    cores = devices.worker_count(torch.device("cpu"))
    variant = msgspec.structs.replace(small.variants[0], steps=arguments.steps)
    precision: Precision = arguments.precision
    data = msgspec.structs.replace(small.data, path=text)
    experiment = msgspec.structs.replace(small, data=data, seeds=cores, variants=(variant,), precision=precision)
    corpus = corpora.load(data, lambda _line: None)
    rows = variant.batch_size * variant.sequence_length

    def rate() -> float:
        return product_rate(rows, variant.width, variant.mlp_width, 2.0)

    rates = [rate()]
    plain = [plain_loop(variant, corpus, arguments.plain_steps)[0]]
    finished, _ = ours(experiment, folder / "run")
    plain.append(plain_loop(variant, corpus, arguments.plain_steps)[0])
    rates.append(rate())

    assert finished.elapsed is not None
    assert finished.training_seconds is not None
    assert finished.probe_seconds is not None
    tokens = rows * variant.steps * cores / finished.elapsed
    theirs = rows / (sum(plain) / 2)
    operations = language_model.operations(variant, corpus.vocabulary) * variant.steps * cores / finished.elapsed
    share = finished.probe_seconds / finished.training_seconds
    print(f"{variant.depth} layers of width {variant.width}, batches of {rows} tokens, {cores} cores, {corpus.source}")
    print(f"ours, probes and journal in {precision:8} {tokens:8,.0f} tokens/s")
    print(f"LlamaForCausalLM in float32          {theirs:8,.0f} tokens/s", end="   ")
    print(f"(before {rows / plain[0]:,.0f}, after {rows / plain[1]:,.0f})")
    print(f"ratio                                {tokens / theirs:8.2f}")
    print(f"float32 product rate                 {sum(rates) / 2e9:8.1f} GFLOP/s", end=", ")
    print(f"of which the whole run reached {operations / (sum(rates) / 2):.0%}")
    print(f"probes                               {share:8.1%} of the training time")
    return 0


def self_check(text: str, folder: Path) -> int:
    """Both sides are the same network and learn the same text to about the same loss."""
    variant = LanguageVariant(
        name="a", depth=2, width=32, heads=2, key_value_heads=2, mlp_width=64, steps=40, batch_size=8, warmup=5
    )
    data = Text(path=text, vocabulary=300)
    experiment = LanguageExperiment(
        name="check", seeds=1, data=data, probes=Probes(leading=2), variants=(variant,), precision="float32"
    )
    corpus = corpora.load(data, lambda _line: None)
    _, loss = plain_loop(variant, corpus, variant.steps)
    finished, losses = ours(experiment, folder / "run")
    assert finished.status == "done", finished
    assert abs(loss - losses[0]) < 0.3, (loss, losses)
    assert product_rate(256, 32, 64, 0.1) > 0
    print("language_throughput: self-check passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
