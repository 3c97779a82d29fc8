"""A decoder as transformers' LlamaForCausalLM computes it, with parts that can be replaced, and its folder on disk.

Parameters are stacks over layers, [layer, out, in], one for each projection: what is measured is there without a copy.
The matrix products are those of `products`; all else is torch's.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor

from geocont.ablations import products
from geocont.ablations.experiment import LanguageVariant
from geocont.ablations.residual_mlp import ACTIVATIONS, radial_factor
from geocont.atomic import atomic_file
from geocont.weights import safetensors_file

_EPSILON = 1e-6
_ROTARY_BASE = 10000.0
_HEAD = "head"
# transformers' words for the activations it has.
_TRANSFORMERS_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "relu": "relu", "tanh": "tanh", "none": "linear"}
_TRANSFORMERS_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
}


def projection_shapes(variant: LanguageVariant) -> dict[str, tuple[int, int]]:
    """(out, in) of every projection that a layer has."""
    keys = variant.width // variant.heads * variant.key_value_heads
    shapes = {
        "q": (variant.width, variant.width),
        "k": (keys, variant.width),
        "v": (keys, variant.width),
        "o": (variant.width, variant.width),
        "gate": (variant.mlp_width, variant.width),
        "up": (variant.mlp_width, variant.width),
        "down": (variant.width, variant.mlp_width),
    }
    if not variant.gate:
        del shapes["gate"]
    return shapes


def shapes(variant: LanguageVariant, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Of every parameter: projections and norms as stacks over layers, embedding and head as rows of the vocabulary."""
    found: dict[str, tuple[int, ...]] = {
        name: (variant.depth, *shape) for name, shape in projection_shapes(variant).items()
    }
    if variant.normalization != "none":
        found |= dict.fromkeys(("attention_norm", "mlp_norm"), (variant.depth, variant.width))
        found["norm"] = (variant.width,)
    found["embedding"] = (vocabulary, variant.width)
    if not variant.tied_embeddings:
        found[_HEAD] = (vocabulary, variant.width)
    return found


def initial_parameters(variant: LanguageVariant, vocabulary: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Matrices from N(0, std²), norms 1. Variants of one width and depth share what they have in common."""
    wanted = shapes(variant, vocabulary)
    whole = msgspec.structs.replace(variant, gate=True, tied_embeddings=False)
    order = ("embedding", "q", "k", "v", "o", "up", "down", "gate", _HEAD)
    found = {}
    for name in order:
        # What a variant does without is drawn as well, so that all after it are the same.
        values = torch.empty(shapes(whole, vocabulary)[name]).normal_(
            0, variant.initialization.std, generator=generator
        )
        if name in wanted:
            found[name] = values
    return found | {name: torch.ones(shape) for name, shape in wanted.items() if name not in order}


@dataclass(frozen=True)
class Rotary:
    """cos and sin of the rotary embedding for positions 0, 1, … (Su et al. 2021), as transformers arranges them."""

    cos: Float[Tensor, "position half"]
    sin: Float[Tensor, "position half"]

    @staticmethod
    def make(positions: int, head_width: int, device: torch.device) -> "Rotary":
        """For so many positions."""
        frequencies = _ROTARY_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width)
        angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies
        return Rotary(angles.cos(), angles.sin())

    def turn(self, x: Float[Tensor, "batch head position width"]) -> Float[Tensor, "batch head position width"]:
        """Each half of a head's numbers is turned against the other."""
        first, second = x.chunk(2, -1)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass(frozen=True)
class Decoder:
    """The function that a variant computes; `precision` is that of its matrix products and, on a GPU, its attention."""

    variant: LanguageVariant
    rotary: Rotary
    precision: torch.dtype = torch.float32

    def forward(
        self,
        parameters: Mapping[str, Tensor],
        tokens: Int[Tensor, "batch position"],
        gradients: Mapping[str, products.WeightGradients] | None = None,
        factors: list[Tensor] | None = None,
    ) -> Float[Tensor, "batch position vocabulary"]:
        """Logits of the next token at every position.

        The gradients of the projections go to `gradients` if they are given. When `factors` is a list, it gets the
        mean activation factor of every layer of a radial variant.
        """
        variant = self.variant
        batch, positions = tokens.shape
        weights = {
            name: parameters[name].to(self.precision).unsqueeze(1)
            for name in projection_shapes(variant)
            if name in parameters
        }

        def project(x: Tensor, name: str, layer: int) -> Tensor:
            into = None if gradients is None else gradients[name]
            return products.linear(x.to(self.precision)[None], weights[name][layer], into, layer)[0]

        def heads(x: Tensor) -> Tensor:
            # torch's attention takes three times as long in bf16 on a CPU.
            x = x.float() if x.device.type == "cpu" else x
            return x.view(batch, positions, -1, variant.width // variant.heads).transpose(1, 2)

        x = F.embedding(tokens.flatten(), parameters["embedding"])
        for layer in range(variant.depth):
            h = self._norm(x, parameters, "attention_norm", layer)
            attended = F.scaled_dot_product_attention(
                self.rotary.turn(heads(project(h, "q", layer))),
                self.rotary.turn(heads(project(h, "k", layer))),
                heads(project(h, "v", layer)),
                is_causal=True,
                enable_gqa=variant.key_value_heads != variant.heads,
            )
            written = project(attended.transpose(1, 2).reshape(len(x), -1), "o", layer).to(x.dtype)
            x = x + written if variant.residual else written
            h = self._norm(x, parameters, "mlp_norm", layer)
            inner = project(h, "gate" if variant.gate else "up", layer)
            if factors is not None and variant.activation.startswith("radial"):
                is_scaled = variant.activation == "radial_scaled"
                factors.append(radial_factor(inner.detach().float(), scaled=is_scaled).mean())
            activated = ACTIVATIONS[variant.activation](inner)
            if variant.gate:
                activated = activated * project(h, "up", layer)
            written = project(activated, "down", layer).to(x.dtype)
            x = x + written if variant.residual else written
        x = self._norm(x, parameters, "norm", None)
        head = parameters[_HEAD if _HEAD in parameters else "embedding"]
        return products.linear(x.to(self.precision)[None], head.to(self.precision)[None])[0].float()

    def losses(
        self,
        parameters: Mapping[str, Tensor],
        tokens: Int[Tensor, "batch longer"],
        gradients: Mapping[str, products.WeightGradients] | None = None,
        factors: list[Tensor] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy (nats a token) of every token of `tokens` but the first of each sequence."""
        logits = self.forward(parameters, tokens[:, :-1], gradients, factors)
        return F.cross_entropy(logits, tokens[:, 1:].flatten())

    def _norm(self, x: Tensor, parameters: Mapping[str, Tensor], name: str, layer: int | None) -> Tensor:
        if self.variant.normalization == "none":
            return x
        weight = parameters[name] if layer is None else parameters[name][layer]
        if self.variant.normalization == "layernorm":
            return F.layer_norm(x, x.shape[-1:], weight, eps=_EPSILON)
        return F.rms_norm(x, x.shape[-1:], weight, eps=_EPSILON)


def learning_rate(variant: LanguageVariant, step: int) -> float:
    """That of the update after `step` updates: a linear rise, then a cosine down to `final_learning_rate`."""
    peak = variant.optimizer.learning_rate
    if step < variant.warmup:
        return peak * (step + 1) / variant.warmup
    part = (step - variant.warmup) / max(variant.steps - variant.warmup, 1)
    lowest = variant.final_learning_rate
    return peak * (lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * min(part, 1.0))))


def operations(variant: LanguageVariant, vocabulary: int) -> int:
    """Floating-point operations of one training step: 6 for each weight of a product and token, and attention's own."""
    tokens = variant.batch_size * variant.sequence_length
    weights = variant.depth * sum(rows * columns for rows, columns in projection_shapes(variant).values())
    attention = variant.depth * variant.width * variant.sequence_length
    return 6 * tokens * (weights + vocabulary * variant.width + attention)


def save(folder: Path, variant: LanguageVariant, parameters: Mapping[str, Tensor], tokenizer: bytes | None) -> None:
    """Write a network as a folder that `geocont-tui analyze` reads, and transformers where it has such a network.

    transformers has those with residual connections, RMSNorm, a gate and an elementwise activation or none; what else a
    network is stands in config.json all the same.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = len(parameters["embedding"])
    is_llama = (
        variant.residual
        and variant.gate
        and variant.normalization == "rmsnorm"
        and variant.activation in _TRANSFORMERS_ACTIVATIONS
    )
    config = {
        "architectures": ["LlamaForCausalLM" if is_llama else "AblatedLlama"],
        "model_type": "llama",
        "hidden_act": _TRANSFORMERS_ACTIVATIONS.get(variant.activation, variant.activation),
        "hidden_size": variant.width,
        "intermediate_size": variant.mlp_width,
        "num_hidden_layers": variant.depth,
        "num_attention_heads": variant.heads,
        "num_key_value_heads": variant.key_value_heads,
        "head_dim": variant.width // variant.heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": variant.sequence_length,
        "rms_norm_eps": _EPSILON,
        "rope_theta": _ROTARY_BASE,
        "tie_word_embeddings": variant.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": variant.initialization.std,
        "torch_dtype": "float32",
        "geocont": {
            "name": variant.name,
            "residual": variant.residual,
            "gate": variant.gate,
            "normalization": variant.normalization,
            "activation": variant.activation,
        },
    }
    tensors: dict[str, Tensor] = {}
    for name, value in parameters.items():
        if name in _TRANSFORMERS_NAMES:
            for layer, part in enumerate(value):
                tensors[f"model.layers.{layer}.{_TRANSFORMERS_NAMES[name]}.weight"] = part
        else:
            known = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", _HEAD: "lm_head.weight"}
            tensors[known[name]] = value
    files: dict[str, bytes] = {"config.json": msgspec.json.format(msgspec.json.encode(config), indent=2)}
    if tokenizer is not None:
        files["tokenizer.json"] = tokenizer
    for file_name, content in files.items():
        with atomic_file(folder / file_name) as file:
            file.write(content)
    with atomic_file(folder / "model.safetensors") as file:
        for chunk in safetensors_file.encoded(tensors, {"format": "pt"}):
            file.write(chunk)


def folder_name(variant: str, seed: int) -> str:
    """A folder's name for a network: what is not a letter, a digit, a dot, plus or minus becomes an underscore."""
    return f"{re.sub(r'[^A-Za-z0-9.+-]', '_', variant).lstrip('.') or '_'}-{seed}"
