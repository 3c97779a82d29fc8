"""Every projection that is cut out of a family's checkpoint does what the family's own modules do to an input."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from families import FAMILIES, FF, GROUPS, HEAD, HEADS, HIDDEN, TinyCheckpoint, make
from geocont.weights.layouts import Placement, Plan, plan, read_layouts
from torch import Tensor, nn
from torch.nn.functional import linear

Function = Callable[[Tensor], Tensor]
Expected = Callable[[nn.Module], list[Function]]
"""From a layer's module to what the projection does to an input [1, length, in]: one function, or one an expert.

Raises AttributeError in a layer that does not have the projection.
"""


def path(name: str) -> Expected:
    """A module, or a parameter used as torch.nn.functional.linear does."""

    def functions(layer: nn.Module) -> list[Function]:
        *parents, last = name.split(".")
        found = getattr(layer.get_submodule(".".join(parents)), last)
        if found is None:
            raise AttributeError(name)
        return [found if isinstance(found, nn.Module) else lambda x: linear(x, found)]

    return functions


def view(name: str, of_outputs: Callable[[nn.Module, Tensor], Tensor]) -> Expected:
    """A part of a fused module's outputs [1, length, out], taken by the modelling code's own view."""

    def functions(layer: nn.Module) -> list[Function]:
        parent, module = layer.get_submodule(name.rpartition(".")[0]), layer.get_submodule(name)
        return [lambda x: of_outputs(parent, module(x)).reshape(1, x.shape[1], -1)]

    return functions


def views(name: str, split: Callable[[nn.Module, Tensor], Any], *projections: str) -> dict[str, Expected]:
    """The parts of a fused module's outputs in the order in which `split` gives them."""
    return {
        projection: view(name, lambda parent, y, place=place: split(parent, y)[place])
        for place, projection in enumerate(projections)
    }


def experts(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> Expected:
    """For each expert e, function(x, parameter[e])."""

    def functions(layer: nn.Module) -> list[Function]:
        *parents, last = name.split(".")
        parameter = getattr(layer.get_submodule(".".join(parents)), last)
        return [lambda x, weight=weight: function(x, weight) for weight in parameter]

    return functions


def paths(prefix: str, **names: str) -> dict[str, Expected]:
    return {projection: path(f"{prefix}{name}") for projection, name in names.items()}


def expert_paths(mlp: str) -> dict[str, Expected]:
    """Experts as transformers holds them: gate_up_proj [E, 2 ff, d] and down_proj [E, d, ff]."""
    return {
        "gate[E]": experts(f"{mlp}.experts.gate_up_proj", lambda x, weight: linear(x, weight).chunk(2, dim=-1)[0]),
        "up[E]": experts(f"{mlp}.experts.gate_up_proj", lambda x, weight: linear(x, weight).chunk(2, dim=-1)[1]),
        "down[E]": experts(f"{mlp}.experts.down_proj", linear),
    }


def either(*choices: str) -> Expected:
    """The first of these modules that the layer has."""

    def functions(layer: nn.Module) -> list[Function]:
        names = {name for name, _ in layer.named_modules()}
        return path(next((choice for choice in choices if choice in names), choices[0]))(layer)

    return functions


def chunk(count: int) -> Callable[[nn.Module, Tensor], Any]:
    return lambda _, y: y.chunk(count, dim=-1)


def per_head(heads: int, count: int) -> Callable[[nn.Module, Tensor], Any]:
    """GPT-NeoX, StarCoder, MiniMax, DeBERTa, Qwen3-Next: heads first, then parts of equal size."""
    return lambda _, y: y.view(*y.shape[:-1], heads, -1).chunk(count, dim=-1)


def sizes(*lengths: int) -> Callable[[nn.Module, Tensor], Any]:
    return lambda _, y: y.split(lengths, dim=-1)


def own_method(name: str) -> Callable[[nn.Module, Tensor], Any]:
    """The attention module's own way to split, its outputs brought to [batch, length, heads, size]."""

    def split(parent: nn.Module, y: Tensor) -> tuple[Tensor, ...]:
        parts = getattr(parent, name)(y)
        heads_first = name == "_reshape"
        return tuple(part.transpose(1, 2) if heads_first else part for part in parts)

    return split


def falcon_groups(parent: nn.Module, y: Tensor) -> tuple[Tensor, ...]:
    query, key, value = parent._split_heads(y)
    repeats = HEADS // GROUPS  # it repeats keys and values for every query head
    return query, key[:, :, ::repeats], value[:, :, ::repeats]


def codegen(parent: nn.Module, y: Tensor) -> tuple[Tensor, ...]:
    query, value, key = y.view(*y.shape[:-1], 4, -1).split(y.shape[-1] // 12, dim=-1)
    return query, key, value


def modernbert(parent: nn.Module, y: Tensor) -> tuple[Tensor, ...]:
    return y.view(*y.shape[:-1], 3, -1, HEAD).unbind(dim=-3)


ATTENTION = paths("self_attn.", q="q_proj", k="k_proj", v="v_proj", o="o_proj")
MLP = paths("mlp.", gate="gate_proj", up="up_proj", down="down_proj")
LLAMA = ATTENTION | MLP
UP_DOWN = paths("mlp.", up="up_proj", down="down_proj")
FC = paths("mlp.", up="fc1", down="fc2")
GATE_UP = views("mlp.gate_up_proj", chunk(2), "gate", "up") | paths("mlp.", down="down_proj")
C_FC = paths("mlp.", up="c_fc", down="c_proj")
H_TO_4H = paths("mlp.", up="dense_h_to_4h", down="dense_4h_to_h")
OUT_PROJ = ATTENTION | paths("self_attn.", o="out_proj")
BART = OUT_PROJ | paths("", up="fc1", down="fc2")
CROSS = paths("encoder_attn.", q="q_proj", k="k_proj", v="v_proj", o="out_proj")
FEED_FORWARD = paths("feed_forward.", gate="gate_proj", up="up_proj", down="down_proj")
BERT_MLP = paths("", up="intermediate.dense", down="output.dense")
BERT = paths("attention.", q="self.query", k="self.key", v="self.value", o="output.dense") | BERT_MLP
VIT = paths("attention.", q="q_proj", k="k_proj", v="v_proj", o="o_proj") | FC
MLA = paths("self_attn.", q_a="q_a_proj", q_b="q_b_proj", kv_a="kv_a_proj_with_mqa", kv_b="kv_b_proj", o="o_proj")
SHARED_EXPERT = paths("mlp.shared_expert.", shared_gate="gate_proj", shared_up="up_proj", shared_down="down_proj")
SHARED_EXPERTS = paths("mlp.shared_experts.", shared_gate="gate_proj", shared_up="up_proj", shared_down="down_proj")
MAMBA = paths("mixer.", mamba_in="in_proj", mamba_out="out_proj")
MAMBA_BESIDE = paths("mamba.", mamba_in="in_proj", mamba_out="out_proj")
GRANITE_SHARED = views("shared_mlp.input_linear", chunk(2), "shared_gate", "shared_up") | paths(
    "shared_mlp.", shared_down="output_linear"
)


def t5(place: int, feed_forward: dict[str, Expected], attention: str = "SelfAttention") -> dict[str, Expected]:
    return paths(f"layer.0.{attention}.", q="q", k="k", v="v", o="o") | feed_forward


def t5_plain(place: int) -> dict[str, Expected]:
    return paths(f"layer.{place}.DenseReluDense.", up="wi", down="wo")


def t5_gated(place: int) -> dict[str, Expected]:
    return paths(f"layer.{place}.DenseReluDense.", gate="wi_0", up="wi_1", down="wo")


def switch(place: int) -> dict[str, Expected]:
    routed = {
        f"{projection}[E]": (
            lambda layer, leaf=leaf: [getattr(expert, leaf) for expert in layer.layer[place].mlp.experts.values()]
        )
        for projection, leaf in (("up", "wi"), ("down", "wo"))
    }
    return paths(f"layer.{place}.mlp.", up="wi", down="wo") | routed


T5_CROSS = paths("layer.1.EncDecAttention.", q="q", k="k", v="v", o="o")


@dataclass(frozen=True)
class Part:
    """Where the layers of a stack are in the model, and what each of their projections does."""

    layers: str
    projections: dict[str, Expected]


def alone(layers: str, *projections: dict[str, Expected]) -> dict[str, Part]:
    return {"layers": Part(layers, {name: does for group in projections for name, does in group.items()})}


def encoder_decoder(encoder: dict[str, Expected], decoder: dict[str, Expected], cross: dict[str, Expected]) -> Any:
    container = "model." if encoder is BART else ""
    layers = "layers" if encoder is BART else "block"
    return {
        "encoder": Part(f"{container}encoder.{layers}", encoder),
        "decoder": Part(f"{container}decoder.{layers}", decoder),
        "decoder cross-attention": Part(f"{container}decoder.{layers}", cross),
    }


LLAMA_FAMILIES = [
    "llama", "llama_head_dim", "llama_square", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2",
    "gemma3_text", "cohere", "cohere2", "olmo", "olmo2", "olmo3", "stablelm", "granite", "smollm3", "ernie4_5",
    "exaone4", "seed_oss", "helium", "hunyuan_v1_dense", "bitnet", "diffllama", "gemma3n_text", "gemma4_text",
]  # fmt: skip
GPT2_ATTENTION = views("attn.c_attn", chunk(3), "q", "k", "v") | paths("attn.", o="c_proj")
QWEN3_NEXT = (
    views("self_attn.q_proj", per_head(HEADS, 2), "q", "attention_gate")
    | paths("self_attn.", k="k_proj", v="v_proj", o="o_proj")
    | paths("linear_attn.", linear_o="out_proj")
)
VISION_QKV = views("attn.qkv", chunk(3), "q", "k", "v") | paths("attn.", o="proj")

EXPECTED: dict[str, dict[str, Part]] = {
    **{name: alone("model.layers", LLAMA) for name in LLAMA_FAMILIES},
    "phi": alone("model.layers", ATTENTION, paths("self_attn.", o="dense"), FC),
    "nanochat": alone("model.layers", ATTENTION, FC),
    "nemotron": alone("model.layers", ATTENTION, UP_DOWN),
    "arcee": alone("model.layers", ATTENTION, UP_DOWN),
    "apertus": alone("model.layers", ATTENTION, UP_DOWN),
    "phi3": alone(
        "model.layers",
        views("self_attn.qkv_proj", sizes(HEADS * HEAD, GROUPS * HEAD, GROUPS * HEAD), "q", "k", "v"),
        paths("self_attn.", o="o_proj"),
        GATE_UP,
    ),
    "glm": alone("model.layers", ATTENTION, GATE_UP),
    "glm4": alone("model.layers", ATTENTION, GATE_UP),
    "gpt2": alone("transformer.h", GPT2_ATTENTION, C_FC),
    "openai-gpt": alone("transformer.h", GPT2_ATTENTION, C_FC),
    "gpt_bigcode": alone(
        "transformer.h",
        views("attn.c_attn", sizes(HIDDEN, HEAD, HEAD), "q", "k", "v"),
        paths("attn.", o="c_proj"),
        C_FC,
    ),
    "gpt_bigcode_heads": alone(
        "transformer.h", views("attn.c_attn", per_head(HEADS, 3), "q", "k", "v"), paths("attn.", o="c_proj"), C_FC
    ),
    "gpt_neo": alone("transformer.h", paths("attn.attention.", q="q_proj", k="k_proj", v="v_proj", o="out_proj"), C_FC),
    "gptj": alone(
        "transformer.h",
        paths("attn.", q="q_proj", k="k_proj", v="v_proj", o="out_proj"),
        paths("mlp.", up="fc_in", down="fc_out"),
    ),
    "codegen": alone(
        "transformer.h",
        views("attn.qkv_proj", codegen, "q", "k", "v"),
        paths("attn.", o="out_proj"),
        paths("mlp.", up="fc_in", down="fc_out"),
    ),
    "gpt_neox": alone(
        "gpt_neox.layers",
        views("attention.query_key_value", per_head(HEADS, 3), "q", "k", "v"),
        paths("attention.", o="dense"),
        H_TO_4H,
    ),
    "bloom": alone(
        "transformer.h",
        views("self_attention.query_key_value", own_method("_reshape"), "q", "k", "v"),
        paths("self_attention.", o="dense"),
        H_TO_4H,
    ),
    **{
        name: alone(
            "transformer.h",
            views("self_attention.query_key_value", split, "q", "k", "v"),
            paths("self_attention.", o="dense"),
            H_TO_4H,
        )
        for name, split in (
            ("falcon_rw", own_method("_split_heads")),
            ("falcon_7b", own_method("_split_heads")),
            ("falcon_40b", falcon_groups),
        )
    },
    "persimmon": alone(
        "model.layers",
        views("self_attn.query_key_value", own_method("_split_heads"), "q", "k", "v"),
        paths("self_attn.", o="dense"),
        H_TO_4H,
    ),
    "mpt": alone(
        "transformer.blocks",
        views("attn.Wqkv", chunk(3), "q", "k", "v"),
        paths("attn.", o="out_proj"),
        paths("ffn.", up="up_proj", down="down_proj"),
    ),
    "starcoder2": alone("model.layers", ATTENTION, C_FC),
    "opt": alone("model.decoder.layers", BART),
    "xglm": alone("model.layers", BART),
    "biogpt": alone("biogpt.layers", BART),
    "ctrl": alone(
        "transformer.h",
        paths("multi_head_attention.", q="Wq", k="Wk", v="Wv", o="dense"),
        paths("ffn.", up="0", down="2"),
    ),
    **{name: encoder_decoder(BART, BART, CROSS) for name in ("bart", "m2m_100", "pegasus", "marian", "whisper")},
    "t5": encoder_decoder(t5(1, t5_plain(1)), t5(2, t5_plain(2)), T5_CROSS),
    "flan_t5": encoder_decoder(t5(1, t5_gated(1)), t5(2, t5_gated(2)), T5_CROSS),
    "umt5": encoder_decoder(t5(1, t5_gated(1)), t5(2, t5_gated(2)), T5_CROSS),
    "longt5": encoder_decoder(t5(1, t5_plain(1), "LocalSelfAttention"), t5(2, t5_plain(2)), T5_CROSS),
    "switch_transformers": encoder_decoder(t5(1, switch(1)), t5(2, switch(2)), T5_CROSS),
    "bert": alone("encoder.layer", BERT),
    "roberta": alone("roberta.encoder.layer", BERT),
    "electra": alone("encoder.layer", BERT),
    "esm": alone("encoder.layer", BERT),
    "deberta": alone(
        "encoder.layer",
        views("attention.self.in_proj", per_head(HEADS, 3), "q", "k", "v"),
        paths("attention.", o="output.dense"),
        BERT_MLP,
    ),
    "deberta-v2": alone(
        "encoder.layer",
        paths("attention.", q="self.query_proj", k="self.key_proj", v="self.value_proj", o="output.dense"),
        BERT_MLP,
    ),
    "distilbert": alone(
        "transformer.layer",
        paths("attention.", q="q_lin", k="k_lin", v="v_lin", o="out_lin"),
        paths("ffn.", up="lin1", down="lin2"),
    ),
    "mpnet": alone("encoder.layer", paths("attention.attn.", q="q", k="k", v="v", o="o"), BERT_MLP),
    "modernbert": alone(
        "layers",
        views("attn.Wqkv", modernbert, "q", "k", "v"),
        paths("attn.", o="Wo"),
        views("mlp.Wi", chunk(2), "gate", "up"),
        paths("mlp.", down="Wo"),
    ),
    "nomic_bert": alone("layers", LLAMA),
    "albert": alone(
        "encoder.albert_layer_groups.0.albert_layers",
        paths("attention.", q="query", k="key", v="value", o="dense"),
        paths("", up="ffn", down="ffn_output"),
    ),
    **{name: alone("layers", VIT) for name in ("vit", "deit", "beit")},
    "dinov2": alone("encoder.layer", VIT),
    "dinov2_swiglu": alone("encoder.layer", {name: VIT[name] for name in "qkvo"}, MLP),
    **{
        name: {
            "text": Part("text_model.encoder.layers", OUT_PROJ | FC),
            "vision": Part("vision_model.encoder.layers", OUT_PROJ | FC),
        }
        for name in ("clip", "siglip")
    },
    "swin": {f"stage {stage}": Part(f"encoder.layers.{stage}.blocks", VIT) for stage in (0, 1)},
    "segformer": {f"stage {stage}": Part(f"stages.{stage}.blocks", VIT) for stage in (0, 1)},
    "mixtral": alone("model.layers", ATTENTION, expert_paths("mlp")),
    "phimoe": alone("model.layers", ATTENTION, expert_paths("mlp")),
    "minimax": alone(
        "model.layers",
        ATTENTION,
        views("self_attn.qkv_proj", per_head(HEADS, 3), "linear_q", "linear_k", "linear_v"),
        paths("self_attn.", linear_o="out_proj", linear_gate="output_gate"),
        expert_paths("mlp"),
    ),
    "qwen2_moe": alone("model.layers", ATTENTION, expert_paths("mlp"), SHARED_EXPERT),
    "qwen3_moe": alone("model.layers", LLAMA, expert_paths("mlp")),
    "olmoe": alone("model.layers", ATTENTION, expert_paths("mlp")),
    "deepseek_v2": alone("model.layers", MLA, MLP, expert_paths("mlp"), SHARED_EXPERTS),
    "deepseek_v2_lite": alone(
        "model.layers", MLA, paths("self_attn.", q="q_proj"), MLP, expert_paths("mlp"), SHARED_EXPERTS
    ),
    "deepseek_v3": alone("model.layers", MLA, MLP, expert_paths("mlp"), SHARED_EXPERTS),
    "glm4_moe": alone("model.layers", LLAMA, expert_paths("mlp"), SHARED_EXPERTS),
    "ernie4_5_moe": alone("model.layers", LLAMA, expert_paths("mlp"), SHARED_EXPERTS),
    "hunyuan_v1_moe": alone(
        "model.layers",
        ATTENTION,
        expert_paths("mlp"),
        paths("mlp.shared_mlp.", shared_gate="gate_proj", shared_up="up_proj", shared_down="down_proj"),
    ),
    "minicpm3": alone("model.layers", MLA, MLP),
    **{
        name: alone(
            "model.layers",
            ATTENTION,
            {
                "gate[E]": experts("mlp.experts.gate_up_proj", lambda x, weight: (x @ weight)[..., ::2]),
                "up[E]": experts("mlp.experts.gate_up_proj", lambda x, weight: (x @ weight)[..., 1::2]),
                "down[E]": experts("mlp.experts.down_proj", torch.matmul),
            },
        )
        for name in ("gpt_oss", "gpt_oss_square")
    },
    "llama4_text": alone(
        "model.layers",
        ATTENTION,
        FEED_FORWARD,
        {
            "gate[E]": experts("feed_forward.experts.gate_up_proj", lambda x, weight: (x @ weight).chunk(2, dim=-1)[0]),
            "up[E]": experts("feed_forward.experts.gate_up_proj", lambda x, weight: (x @ weight).chunk(2, dim=-1)[1]),
            "down[E]": experts("feed_forward.experts.down_proj", torch.matmul),
        },
        paths("feed_forward.shared_expert.", shared_gate="gate_proj", shared_up="up_proj", shared_down="down_proj"),
    ),
    "granitemoe": alone("model.layers", ATTENTION, expert_paths("block_sparse_moe")),
    "granitemoehybrid": alone(
        "model.layers", ATTENTION, expert_paths("block_sparse_moe"), GRANITE_SHARED, MAMBA_BESIDE
    ),
    "jetmoe": alone(
        "model.layers",
        views("self_attention.kv_proj", chunk(2), "k", "v"),
        {
            "q[E]": experts("self_attention.experts.input_linear.weight", linear),
            "o[E]": experts("self_attention.experts.output_linear.weight", linear),
            "gate[E]": experts("mlp.input_linear.weight", lambda x, weight: linear(x, weight).chunk(2, dim=-1)[0]),
            "up[E]": experts("mlp.input_linear.weight", lambda x, weight: linear(x, weight).chunk(2, dim=-1)[1]),
            "down[E]": experts("mlp.output_linear.weight", linear),
        },
    ),
    "dbrx": alone(
        "transformer.blocks",
        views("norm_attn_norm.attn.Wqkv", sizes(HIDDEN, GROUPS * HEAD, GROUPS * HEAD), "q", "k", "v"),
        paths("norm_attn_norm.attn.", o="out_proj"),
        {
            projection: (
                lambda layer, leaf=leaf, transposed=transposed: [
                    lambda x, weight=weight: x.matmul(weight if transposed else weight.T)
                    for weight in getattr(layer.ffn.experts.mlp, leaf).view(4, 24, HIDDEN)
                ]
            )
            for projection, leaf, transposed in (
                ("gate[E]", "w1", False),
                ("up[E]", "v1", False),
                ("down[E]", "w2", True),
            )
        },
    ),
    "mamba": alone("backbone.layers", MAMBA),
    "mamba2": alone("backbone.layers", MAMBA),
    "falcon_mamba": alone("backbone.layers", MAMBA),
    "jamba": alone("model.layers", ATTENTION, FEED_FORWARD, expert_paths("feed_forward"), MAMBA_BESIDE),
    "bamba": alone("model.layers", ATTENTION, FEED_FORWARD, MAMBA_BESIDE),
    "qwen3_next": alone(
        "model.layers", QWEN3_NEXT, paths("linear_attn.", linear_in="in_proj_qkvz"), expert_paths("mlp"), SHARED_EXPERT
    ),
    "qwen3_5_text": alone(
        "model.layers", QWEN3_NEXT, paths("linear_attn.", linear_in="in_proj_qkv", linear_z="in_proj_z"), MLP
    ),
    "olmo_hybrid": alone(
        "model.layers",
        LLAMA,
        paths(
            "linear_attn.",
            linear_q="q_proj",
            linear_k="k_proj",
            linear_v="v_proj",
            linear_gate="g_proj",
            linear_o="o_proj",
        ),
    ),
    "falcon_h1": alone("model.layers", ATTENTION, FEED_FORWARD, MAMBA_BESIDE),
    "lfm2": alone(
        "model.layers",
        OUT_PROJ,
        paths("feed_forward.", gate="w1", up="w3", down="w2"),
        paths("conv.", conv_in="in_proj", conv_out="out_proj"),
    ),
    "recurrent_gemma": alone(
        "model.layers",
        paths("temporal_block.", q="q_proj", k="k_proj", v="v_proj", o="o_proj"),
        paths("temporal_block.", recurrent_x="linear_x", recurrent_y="linear_y", recurrent_out="linear_out"),
        paths("mlp_block.", gate="gate_proj", up="up_proj", down="down_proj"),
    ),
    "nemotron_h": alone(
        "model.layers",
        MAMBA,
        paths("mixer.", q="q_proj", k="k_proj", v="v_proj", o="o_proj", up="up_proj", down="down_proj"),
    ),
    "zamba2": alone(
        "model.layers",
        {
            "mamba_in": either("mamba.in_proj", "mamba_decoder.mamba.in_proj"),
            "mamba_out": either("mamba.out_proj", "mamba_decoder.mamba.out_proj"),
        },
    ),
    "llava": {
        "text": Part("model.language_model.layers", LLAMA),
        "vision": Part("model.vision_tower.encoder.layers", OUT_PROJ | FC),
    },
    "gemma3": {
        "text": Part("model.language_model.layers", LLAMA),
        "vision": Part("model.vision_tower.encoder.layers", OUT_PROJ | FC),
    },
    "mllama": {
        "text": Part("model.language_model.layers", LLAMA),
        "text cross-attention": Part(
            "model.language_model.layers", paths("cross_attn.", q="q_proj", k="k_proj", v="v_proj", o="o_proj")
        ),
        "vision_model.transformer.layers": Part("model.vision_model.transformer.layers", ATTENTION | FC),
        "vision_model.global_transformer.layers": Part("model.vision_model.global_transformer.layers", ATTENTION | FC),
    },
    "gpt_neox_japanese": alone(
        "gpt_neox_japanese.layers",
        views("attention.query_key_value", per_head(HEADS, 3), "q", "k", "v"),
        paths("attention.", o="dense"),
        H_TO_4H,
    ),
    "imagegpt": alone("h", GPT2_ATTENTION, C_FC),
    "fuyu": {
        "text": Part(
            "model.language_model.layers",
            views("self_attn.query_key_value", own_method("_split_heads"), "q", "k", "v")
            | paths("self_attn.", o="dense")
            | H_TO_4H,
        )
    },
    "dinov3_vit": alone("model.layer", {name: VIT[name] for name in "qkvo"}, UP_DOWN),
    "wav2vec2": alone(
        "encoder.layers",
        paths("attention.", q="q_proj", k="k_proj", v="v_proj", o="out_proj"),
        paths("feed_forward.", up="intermediate_dense", down="output_dense"),
    ),
    "rwkv": alone(
        "rwkv.blocks",
        paths("attention.", receptance="receptance", k="key", v="value", o="output"),
        paths("feed_forward.", up="key", gate="receptance", down="value"),
    ),
    "moonshine": {
        "encoder": Part("model.encoder.layers", ATTENTION | FC),
        "decoder": Part(
            "model.decoder.layers", ATTENTION | views("mlp.fc1", chunk(2), "up", "gate") | paths("mlp.", down="fc2")
        ),
        "decoder cross-attention": Part("model.decoder.layers", CROSS | paths("encoder_attn.", o="o_proj")),
    },
    "t5gemma": {
        "encoder": Part("model.encoder.layers", LLAMA),
        "decoder": Part("model.decoder.layers", LLAMA),
        "decoder cross-attention": Part(
            "model.decoder.layers", paths("cross_attn.", q="q_proj", k="k_proj", v="v_proj", o="o_proj")
        ),
    },
    "deepseek_v32": alone("model.layers", MLA, MLP, expert_paths("mlp"), SHARED_EXPERTS),
    "minimax_m2": alone("model.layers", ATTENTION, expert_paths("mlp")),
    "lfm2_moe": alone(
        "model.layers",
        OUT_PROJ,
        paths("feed_forward.", gate="w1", up="w3", down="w2"),
        paths("conv.", conv_in="in_proj", conv_out="out_proj"),
        expert_paths("feed_forward"),
    ),
    "phi4_multimodal": {
        "text": Part(
            "model.layers",
            views("self_attn.qkv_proj", sizes(HEADS * HEAD, GROUPS * HEAD, GROUPS * HEAD), "q", "k", "v")
            | paths("self_attn.", o="o_proj")
            | GATE_UP,
        ),
        "vision": Part("model.embed_tokens_extend.image_embed.img_processor.encoder.layers", OUT_PROJ | FC),
        "audio": Part("model.embed_tokens_extend.audio_embed.encoder.encoders", ATTENTION),
    },
    "qwen3_vl_moe": {
        "text": Part("model.language_model.layers", ATTENTION | expert_paths("mlp")),
        "vision": Part("model.visual.blocks", VISION_QKV | paths("mlp.", up="linear_fc1", down="linear_fc2")),
    },
    "qwen2_vl": {
        "text": Part("model.language_model.layers", LLAMA),
        "vision": Part("model.visual.blocks", VISION_QKV | FC),
    },
    "qwen2_5_vl": {
        "text": Part("model.language_model.layers", LLAMA),
        "vision": Part("model.visual.blocks", VISION_QKV | MLP),
    },
}

WRITERS = {"o", "down", "linear_o", "mamba_out", "conv_out", "recurrent_out"}
INNER = {"q_b", "kv_b"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices this small are not worth waking a second thread for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Case:
    name: str
    tiny: TinyCheckpoint
    plan: Plan


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    tiny = make(FAMILIES[request.param], tmp_path_factory.mktemp("family"))
    return Case(request.param, tiny, plan(tiny.weights, tiny.config, read_layouts()))


def expected_functions(part: Part, model: nn.Module) -> Iterator[tuple[str, int, list[Function]]]:
    for layer, module in enumerate(model.get_submodule(part.layers)):
        for projection, functions in part.projections.items():
            try:
                found = functions(module)
            except AttributeError:
                continue
            yield projection, layer, found


def test_every_projection_does_what_the_family_s_modules_do(case):
    name, tiny, found = case.name, case.tiny, case.plan
    placements = {(place.stack, place.projection, place.layer): place for place in found.placements}
    assert len(placements) == len(found.placements)
    for stack, part in EXPECTED[name].items():
        for projection, layer, functions in expected_functions(part, tiny.model):
            place = placements.pop((stack, projection, layer))
            compare(place, functions, tiny)
    assert not placements, "projections that the modules do not have"


def compare(place: Placement, functions: list[Function], tiny: TinyCheckpoint) -> None:
    matrices = [matrix.clone() for matrix in place.matrices(tiny.tensors.__getitem__)]
    assert len(matrices) == len(functions) == (place.experts or 1)
    assert place.projection.endswith("[E]") == bool(place.experts)
    generator = torch.Generator().manual_seed(1)
    for matrix, function in zip(matrices, functions, strict=True):
        assert matrix.shape == (place.rows, place.cols)
        x = torch.randn(1, 5, place.cols, generator=generator)
        with torch.no_grad():
            assert torch.allclose(linear(x, matrix), function(x), rtol=1e-4, atol=1e-4), place


def test_readers_and_writers_are_told_apart(case):
    name, found = case.name, case.plan
    for place in found.placements:
        kind = place.projection.removesuffix("[E]").removeprefix("shared_")
        width = found.stacks[place.stack].width
        assert place.side == ("none" if kind in INNER else "u" if kind in WRITERS else "v")
        assert kind in INNER or (place.rows if place.side == "u" else place.cols) == width
        assert place.status == ("shared" if name == "albert" else "ok")


def test_every_weight_is_placed_or_left_out_with_a_reason(case):
    tiny, found = case.tiny, case.plan
    used = {tensor for place in found.placements for tensor in place.tensors}
    assert len(used) + sum(skipped.count for skipped in found.skipped) == len(tiny.tensors)
    assert all(skipped.reason for skipped in found.skipped)
    assert sum(place.bytes for place in found.placements) == sum(tiny.tensors[tensor].nbytes for tensor in used)


FUSED = {
    "phi3": 3, "gpt2": 3, "openai-gpt": 3, "gpt_bigcode": 3, "gpt_bigcode_heads": 3, "codegen": 3, "gpt_neox": 3,
    "bloom": 3, "falcon_rw": 3, "falcon_7b": 3, "falcon_40b": 3, "persimmon": 3, "deberta": 3, "minimax": 2,
    "gpt_oss": 3, "gpt_oss_square": 3, "llama4_text": 2, "qwen3_next": 2, "qwen3_5_text": 2,
    "gpt_neox_japanese": 3, "imagegpt": 3, "fuyu": 3, "moonshine": 2, "phi4_multimodal": 3, "qwen3_vl_moe": 3,
}  # fmt: skip
"""How many tensors of the checkpoint are ambiguous without config.json."""


def test_without_config_a_fused_tensor_is_not_guessed(case):
    name, tiny = case.name, case.tiny
    unsplit = [place for place in plan(tiny.weights, None, read_layouts()).placements if place.status == "unsplit"]
    if name == "dbrx":  # the number of experts is not in the shapes
        assert {place.projection for place in unsplit} == {"gate[E]", "up[E]", "down[E]"}
        return
    assert len(unsplit) == FUSED.get(name, 0)
    for place in unsplit:
        assert "config.json" in place.note
        assert "+" in place.projection


def test_there_are_enough_families():
    assert set(EXPECTED) == set(FAMILIES)
    assert len({family.model_type for family in FAMILIES.values()}) >= 60
    assert FF != HIDDEN
