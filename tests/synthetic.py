"""Events of a run that looks like the default experiment, made from formulas: always the same, without training."""

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec
from geocont.ablations.experiment import Experiment, Variant
from geocont.events import (
    Alignment,
    Event,
    Message,
    NetworkFinished,
    NetworkPlan,
    NetworkProgress,
    Probe,
    Progress,
    RunFinished,
    RunStarted,
)

START = 1_796_000_000.0
PAIRS = 15
WIDTH = 256

# Name, settings, steps, and a weight v1 that rises to `peak` at `turn` (a share of the steps) and ends at `last`.
_VARIANTS: tuple[tuple[str, dict[str, Any], int, float, float, float], ...] = (
    ("Res+GELU", {"activation": "gelu"}, 400, 0.93, 1.0, 0.93),
    ("Res+ReLU", {"activation": "relu"}, 400, 0.91, 0.9, 0.90),
    ("Res+None", {"activation": "none"}, 3200, 0.62, 0.3, 0.31),
    ("Res+Radial", {"activation": "radial"}, 200, 0.58, 0.8, 0.55),
    ("Res+Radial scaled", {"activation": "radial_scaled"}, 400, 0.60, 0.5, 0.42),
    ("NoRes+GELU", {"activation": "gelu", "residual": False}, 100, 0.06, 0.5, 0.05),
    ("Res+LN", {"activation": "none", "normalization": "layernorm"}, 900, 0.55, 0.7, 0.52),
    ("Res+GELU+LN [b]", {"activation": "gelu", "normalization": "layernorm"}, 400, 0.70, 0.9, 0.68),
)


def experiment(seeds: int = 3) -> Experiment:
    """Eight variants, one of them with brackets in its name."""
    variants = tuple(Variant(name=name, steps=steps, **settings) for name, settings, steps, *_ in _VARIANTS)
    return Experiment(name="mlp", description="synthetic", seeds=seeds, variants=variants)


def events(seeds: int = 3, until: float = 1.0, probes: int = 12) -> Iterator[Event]:
    """RunStarted, then every network up to the share `until` of its steps; RunFinished(done) when that is 1."""
    settings = experiment(seeds)
    names = [name for name, *_ in _VARIANTS]
    plans = [(name, seed, steps) for seed in range(seeds) for name, _, steps, *_ in _VARIANTS]
    yield RunStarted(
        name=settings.name,
        experiment=msgspec.to_builtins(settings),
        networks=tuple(NetworkPlan(variant=name, seed=seed, steps=steps) for name, seed, steps in plans),
        device="cpu, 2 threads",
        versions={"python": "3.11", "torch": "2.13"},
        time=START,
    )
    yield Message(level="info", text=f"{len(plans)} networks, 60,000 training images", time=START)
    shares = [0.0] + [math.expm1(5 * index / probes) / math.expm1(5) for index in range(1, probes + 1)]
    for index, share in enumerate(shares):
        if share > until:
            break
        before = shares[index - 1] if index else -1.0
        for name, seed, steps in plans:
            # A step is measured once.
            if round(share * steps) > round(before * steps):
                yield probe(names.index(name), seed, round(share * steps))
        yield Progress(
            networks=tuple(
                NetworkProgress(variant=name, seed=seed, step=round(share * steps), loss=_loss(share))
                for name, seed, steps in plans
            ),
            elapsed=4.0 * index,
            steps_per_second=412.0 if index else None,
            probe_share=0.031,
        )
    if until >= 1:
        for name, seed, steps in plans:
            yield NetworkFinished(variant=name, seed=seed, step=steps, test_loss=0.21, test_accuracy=0.962)
        yield RunFinished(
            status="done",
            time=START + 50,
            elapsed=50.0,
            training_seconds=90.0,
            probe_seconds=3.0,
            network_steps=sum(steps for _, _, steps in plans),
        )


def probe(index: int, seed: int, step: int, **changes: Any) -> Probe:
    """The measurement of variant number `index` at `step`; `changes` replace fields."""
    name, settings, steps, *_ = _VARIANTS[index]
    chance = random.Random(1000 * index + seed)
    share = step / steps
    level = _weight_v1(index, share) + 0.02 * chance.uniform(-1, 1)
    residual = settings.get("residual", True)
    fields: dict[str, Any] = {
        "variant": name,
        "seed": seed,
        "step": step,
        "projection": "hidden",
        "v_dim": WIDTH,
        "u_dim": WIDTH,
        "loss": _loss(share) if step else None,
        "accuracy": 0.1 + 0.86 * share**0.3 if step else None,
        "weight": _alignment(level, chance),
        "gradient": _alignment(0.88 if residual else 0.05, chance),
        "cumulative": _alignment(0.9 if residual else 0.06, chance) if step else _none(),
        "update": _alignment(min(level + 0.05, 1.0), chance) if step else _none(),
        "weight_v_weighted": 0.4,
        "weight_u_weighted": 0.3,
        "update_ratio": 0.8 * share,
        "sigma_ratio": 1.02 + 2 * level * share,
        "top_overlap_v": 0.04 + 0.7 * share,
        "top_overlap_u": 0.04 + 0.6 * share,
        "cumulative_match": 0.8 if step else None,
        "drift": 0.02 if step else None,
        "identity_share": 0.004,
        "activation_factor": 0.999 if "radial" in settings["activation"] else None,
        "gradient_norm": 1.5,
        "exact": step in (0, steps),
        "missing": {} if step else {"update": "nothing is updated yet", "drift": "no earlier snapshot"},
    }
    if fields["activation_factor"] is None:
        fields["missing"] = {**fields["missing"], "activation_factor": "the activation is not radial"}
    return Probe(**(fields | changes))


def _weight_v1(index: int, share: float) -> float:
    _, _, _, peak, turn, last = _VARIANTS[index]
    if share <= turn:
        return 0.05 + (peak - 0.05) * math.sin(math.pi / 2 * share / turn)
    return peak + (last - peak) * (share - turn) / (1 - turn)


def _loss(share: float) -> float:
    return 0.2 + 2.1 * math.exp(-6 * share)


def _alignment(level: float, chance: random.Random) -> Alignment:
    v1 = tuple(min(max(level + 0.04 * chance.uniform(-1, 1), 0.0), 1.0) for _ in range(PAIRS))
    return Alignment(v1=v1, u1=tuple(0.95 * value for value in v1))


def _none() -> Alignment:
    return Alignment(v1=(None,) * PAIRS, u1=(None,) * PAIRS)
