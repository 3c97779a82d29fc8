"""Layouts whose modelling code is not in transformers, by names and shapes: the published names of each family."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from geocont.weights.layouts import Placement, Plan, plan, read_layouts
from geocont.weights.quantization import Weight

Shapes = dict[str, tuple[int, ...]]


def weights(shapes: Shapes) -> dict[str, Weight]:
    return {
        name: Weight(name, shape, "BF16", 2, quantized=False, refused="", sources=(name,))
        for name, shape in shapes.items()
    }


def layers(prefix: str, names: Shapes, numbers: range = range(3)) -> Shapes:
    return {f"{prefix}.{number}.{rest}": shape for number in numbers for rest, shape in names.items()}


def planned(shapes: Shapes, config: dict[str, Any] | None) -> Plan:
    return plan(weights(shapes), config, read_layouts())


def described(placement: Placement) -> str:
    """Shape, side and how it is taken: "32×48 u, transposed"."""
    text = f"{placement.rows}×{placement.cols} {placement.side}"
    return f"{text}, {placement.view}" if placement.view else text


@dataclass(frozen=True)
class Published:
    """Names and shapes of a layer with a residual stream of 32, 4 heads of 8 and a feed-forward layer of 48."""

    prefix: str
    names: Shapes
    expected: dict[str, str]
    config: dict[str, Any] | None = None
    besides: Shapes = field(default_factory=dict)


NORMS: Shapes = {"input_layernorm.weight": (32,), "post_attention_layernorm.weight": (32,)}
SQUARE = {"q": "32×32 v", "k": "32×32 v", "v": "32×32 v", "o": "32×32 u"}
GROUPED = {"q": "32×32 v", "k": "16×32 v", "v": "16×32 v", "o": "32×32 u"}
GATED = {"gate": "48×32 v", "up": "48×32 v", "down": "32×48 u"}
PLAIN = {"up": "48×32 v", "down": "32×48 u"}
THIRDS = {
    "q": "32×32 v, rows 0…31 of 96",
    "k": "32×32 v, rows 32…63 of 96",
    "v": "32×32 v, rows 64…95 of 96",
    "o": "32×32 u",
}
LLAMA_NAMES: Shapes = {
    **NORMS,
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.v_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
}
ORIGINAL_NAMES: Shapes = {
    "attention_norm.weight": (32,),
    "ffn_norm.weight": (32,),
    "attention.wq.weight": (32, 32),
    "attention.wk.weight": (16, 32),
    "attention.wv.weight": (16, 32),
    "attention.wo.weight": (32, 32),
    "feed_forward.w1.weight": (48, 32),
    "feed_forward.w2.weight": (32, 48),
    "feed_forward.w3.weight": (48, 32),
}
GGUF_NAMES: Shapes = {
    "attn_norm.weight": (32,),
    "ffn_norm.weight": (32,),
    "attn_q.weight": (32, 32),
    "attn_k.weight": (16, 32),
    "attn_v.weight": (16, 32),
    "attn_output.weight": (32, 32),
    "ffn_gate.weight": (48, 32),
    "ffn_up.weight": (48, 32),
    "ffn_down.weight": (32, 48),
}
FUSED_ATTENTION = {
    "attn_norm.weight": (32,),
    "ffn_norm.weight": (32,),
    "attn_qkv.weight": (64, 32),
    "attn_output.weight": (32, 32),
}
OF_64 = {
    "q": "32×32 v, rows 0…31 of 64",
    "k": "16×32 v, rows 32…47 of 64",
    "v": "16×32 v, rows 48…63 of 64",
    "o": "32×32 u",
}
HALVES = {"gate": "48×32 v, rows 0…47 of 96", "up": "48×32 v, rows 48…95 of 96", "down": "32×48 u"}

PUBLISHED: dict[str, Published] = {
    "chatglm": Published(
        "transformer.encoder.layers",
        {
            **NORMS,
            "self_attention.query_key_value.weight": (64, 32),
            "self_attention.query_key_value.bias": (64,),
            "self_attention.dense.weight": (32, 32),
            "mlp.dense_h_to_4h.weight": (96, 32),
            "mlp.dense_4h_to_h.weight": (32, 48),
        },
        OF_64 | HALVES,
        {"model_type": "chatglm", "hidden_size": 32, "num_attention_heads": 4, "multi_query_group_num": 2},
        {"transformer.output_layer.weight": (64, 32), "transformer.rotary_pos_emb.inv_freq": (4,)},
    ),
    "internlm2": Published(
        "model.layers",
        {
            "attention_norm.weight": (32,),
            "ffn_norm.weight": (32,),
            "attention.wqkv.weight": (64, 32),
            "attention.wo.weight": (32, 32),
            "feed_forward.w1.weight": (48, 32),
            "feed_forward.w2.weight": (32, 48),
            "feed_forward.w3.weight": (48, 32),
        },
        {
            "q": "32×32 v, rows 0…15 of each 32",
            "k": "16×32 v, rows 16…23 of each 32",
            "v": "16×32 v, rows 24…31 of each 32",
            "o": "32×32 u",
            **GATED,
        },
        {"model_type": "internlm2", "num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "baichuan": Published(
        "model.layers",
        {
            **NORMS,
            "self_attn.W_pack.weight": (96, 32),
            "self_attn.o_proj.weight": (32, 32),
            "mlp.gate_proj.weight": (48, 32),
            "mlp.up_proj.weight": (48, 32),
            "mlp.down_proj.weight": (32, 48),
        },
        THIRDS | GATED,
        {"model_type": "baichuan", "num_attention_heads": 4},
    ),
    "qwen1": Published(
        "transformer.h",
        {
            "ln_1.weight": (32,),
            "ln_2.weight": (32,),
            "attn.c_attn.weight": (96, 32),
            "attn.c_attn.bias": (96,),
            "attn.c_proj.weight": (32, 32),
            "mlp.w1.weight": (48, 32),
            "mlp.w2.weight": (48, 32),
            "mlp.c_proj.weight": (32, 48),
        },
        THIRDS | GATED,
        {"model_type": "qwen", "num_attention_heads": 4},
    ),
    "olmo original": Published(
        "model.transformer.blocks",
        {
            "att_proj.weight": (96, 32),
            "attn_out.weight": (32, 32),
            "ff_proj.weight": (96, 32),
            "ff_out.weight": (32, 48),
        },
        THIRDS | {"up": "48×32 v, rows 0…47 of 96", "gate": "48×32 v, rows 48…95 of 96", "down": "32×48 u"},
        {"model_type": "olmo", "d_model": 32, "n_heads": 4},
        {"model.transformer.wte.weight": (64, 32), "model.transformer.ff_out.weight": (64, 32)},
    ),
    "phi3 small": Published(
        "model.layers",
        {
            **NORMS,
            "self_attn.query_key_value.weight": (64, 32),
            "self_attn.dense.weight": (32, 32),
            "mlp.up_proj.weight": (96, 32),
            "mlp.down_proj.weight": (32, 48),
        },
        {
            "q": "32×32 v, rows 0…15 of each 32",
            "k": "16×32 v, rows 16…23 of each 32",
            "v": "16×32 v, rows 24…31 of each 32",
            "o": "32×32 u",
            # Its gate and up alternate by a rule that no row states.
            "gate+up": "96×32 v",
            "down": "32×48 u",
        },
        {"model_type": "phi3small", "num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "falcon 40b, remote code": Published(
        "transformer.h",
        {
            "ln_attn.weight": (32,),
            "ln_mlp.weight": (32,),
            "self_attention.query_key_value.weight": (64, 32),
            "self_attention.dense.weight": (32, 32),
            "mlp.dense_h_to_4h.weight": (48, 32),
            "mlp.dense_4h_to_h.weight": (32, 48),
        },
        {
            "q": "32×32 v, rows 0…15 of each 32",
            "k": "16×32 v, rows 16…23 of each 32",
            "v": "16×32 v, rows 24…31 of each 32",
            "o": "32×32 u",
            **PLAIN,
        },
        {"model_type": "RefinedWeb", "n_head": 4, "n_head_kv": 2},
    ),
    "falcon 7b, remote code": Published(
        "transformer.h",
        {
            "input_layernorm.weight": (32,),
            "self_attention.query_key_value.weight": (48, 32),
            "self_attention.dense.weight": (32, 32),
            "mlp.dense_h_to_4h.weight": (48, 32),
            "mlp.dense_4h_to_h.weight": (32, 48),
        },
        {
            "q": "32×32 v, rows 0…31 of 48",
            "k": "8×32 v, rows 32…39 of 48",
            "v": "8×32 v, rows 40…47 of 48",
            "o": "32×32 u",
            **PLAIN,
        },
        {"model_type": "RefinedWebModel", "n_head": 4, "multi_query": True},
    ),
    "jais": Published(
        "transformer.h",
        {
            "ln_1.weight": (32,),
            "ln_2.weight": (32,),
            "attn.c_attn.weight": (32, 96),
            "attn.c_proj.weight": (32, 32),
            "mlp.c_fc.weight": (32, 48),
            "mlp.c_fc2.weight": (32, 48),
            "mlp.c_proj.weight": (48, 32),
        },
        {
            "q": "32×32 v, transposed, rows 0…31 of 96",
            "k": "32×32 v, transposed, rows 32…63 of 96",
            "v": "32×32 v, transposed, rows 64…95 of 96",
            "o": "32×32 u, transposed",
            "gate": "48×32 v, transposed",
            "up": "48×32 v, transposed",
            "down": "32×48 u, transposed",
        },
        {"model_type": "jais", "n_head": 4},
        {"transformer.relative_pe.slopes": (4, 1)},
    ),
    "exaone 3": Published(
        "transformer.h",
        {
            "ln_1.weight": (32,),
            "ln_2.weight": (32,),
            "attn.attention.q_proj.weight": (32, 32),
            "attn.attention.k_proj.weight": (16, 32),
            "attn.attention.v_proj.weight": (16, 32),
            "attn.attention.out_proj.weight": (32, 32),
            "mlp.c_fc_0.weight": (48, 32),
            "mlp.c_fc_1.weight": (48, 32),
            "mlp.c_proj.weight": (32, 48),
        },
        GROUPED | GATED,
        {"model_type": "exaone"},
    ),
    "phi 1, remote code": Published(
        "transformer.h",
        {
            "ln.weight": (32,),
            "mixer.Wqkv.weight": (96, 32),
            "mixer.out_proj.weight": (32, 32),
            "mlp.fc1.weight": (48, 32),
            "mlp.fc2.weight": (32, 48),
        },
        THIRDS | PLAIN,
    ),
    "dbrx": Published(
        "transformer.blocks",
        {
            "norm_attn_norm.norm_1.weight": (32,),
            "norm_attn_norm.norm_2.weight": (32,),
            "norm_attn_norm.attn.Wqkv.weight": (64, 32),
            "norm_attn_norm.attn.out_proj.weight": (32, 32),
            "ffn.experts.mlp.w1": (4 * 24, 32),
            "ffn.experts.mlp.v1": (4 * 24, 32),
            "ffn.experts.mlp.w2": (4 * 24, 32),
            "ffn.router.layer.weight": (4, 32),
        },
        OF_64
        | {"gate[E]": "24×32 v, 4 experts", "up[E]": "24×32 v, 4 experts", "down[E]": "32×24 u, 4 experts, transposed"},
        {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 4}},
    ),
    "llama, as published": Published("layers", ORIGINAL_NAMES, GROUPED | GATED, None, {"rope.freqs": (4,)}),
    "mixtral, as published": Published(
        "layers",
        {name: shape for name, shape in ORIGINAL_NAMES.items() if "feed_forward" not in name}
        | {
            f"feed_forward.experts.{expert}.{leaf}.weight": shape
            for expert in range(12)
            for leaf, shape in (("w1", (48, 32)), ("w2", (32, 48)), ("w3", (48, 32)))
        }
        | {"feed_forward.gate.weight": (12, 32)},
        GROUPED | {"gate[E]": "48×32 v, 12 experts", "up[E]": "48×32 v, 12 experts", "down[E]": "32×48 u, 12 experts"},
    ),
    "dino v2, as published": Published(
        "blocks",
        {
            "norm1.weight": (32,),
            "norm2.weight": (32,),
            "ls1.gamma": (32,),
            "attn.qkv.weight": (96, 32),
            "attn.proj.weight": (32, 32),
            "mlp.w12.weight": (96, 32),
            "mlp.w3.weight": (32, 48),
        },
        THIRDS | HALVES,
        None,
        {"pos_embed": (1, 5, 32), "patch_embed.proj.weight": (32, 3, 14, 14)},
    ),
    "torch.nn.TransformerEncoder": Published(
        "encoder.layers",
        {
            "norm1.weight": (32,),
            "norm2.weight": (32,),
            "self_attn.in_proj_weight": (96, 32),
            "self_attn.in_proj_bias": (96,),
            "self_attn.out_proj.weight": (32, 32),
            "linear1.weight": (48, 32),
            "linear2.weight": (32, 48),
        },
        THIRDS | PLAIN,
    ),
    "gguf": Published(
        "blk", GGUF_NAMES, GROUPED | GATED, None, {"token_embd.weight": (64, 32), "output.weight": (64, 32)}
    ),
    "gguf of phi3": Published(
        "blk", {**FUSED_ATTENTION, "ffn_up.weight": (96, 32), "ffn_down.weight": (32, 48)}, OF_64 | HALVES
    ),
    "gguf of gpt-neox": Published(
        "blk", {**FUSED_ATTENTION, "ffn_up.weight": (48, 32), "ffn_down.weight": (32, 48)}, OF_64 | PLAIN
    ),
    "gguf of a mixture": Published(
        "blk",
        {name: shape for name, shape in GGUF_NAMES.items() if not name.startswith("ffn_g") and "ffn_" not in name}
        | {
            "ffn_norm.weight": (32,),
            "ffn_gate_inp.weight": (4, 32),
            "ffn_gate_exps.weight": (4, 24, 32),
            "ffn_up_exps.weight": (4, 24, 32),
            "ffn_down_exps.weight": (4, 32, 24),
            "ffn_gate_shexp.weight": (40, 32),
            "ffn_up_shexp.weight": (40, 32),
            "ffn_down_shexp.weight": (32, 40),
        },
        GROUPED
        | {
            "gate[E]": "24×32 v, 4 experts",
            "up[E]": "24×32 v, 4 experts",
            "down[E]": "32×24 u, 4 experts",
            "shared_gate": "40×32 v",
            "shared_up": "40×32 v",
            "shared_down": "32×40 u",
        },
    ),
    "gguf of deepseek": Published(
        "blk",
        {
            "attn_norm.weight": (32,),
            "ffn_norm.weight": (32,),
            "attn_q_a_norm.weight": (16,),
            "attn_kv_a_norm.weight": (12,),
            "attn_q_a.weight": (16, 32),
            "attn_q_b.weight": (48, 16),
            "attn_kv_a_mqa.weight": (16, 32),
            "attn_kv_b.weight": (56, 12),
            "attn_output.weight": (32, 24),
            "ffn_gate.weight": (48, 32),
            "ffn_up.weight": (48, 32),
            "ffn_down.weight": (32, 48),
        },
        {"q_a": "16×32 v", "q_b": "48×16 none", "kv_a": "16×32 v", "kv_b": "56×12 none", "o": "32×24 u", **GATED},
    ),
    "gguf of mamba": Published(
        "blk",
        {
            "attn_norm.weight": (32,),
            "ssm_in.weight": (128, 32),
            "ssm_conv1d.weight": (64, 4),
            "ssm_x.weight": (18, 64),
            "ssm_dt.weight": (64, 2),
            "ssm_a": (64, 8),
            "ssm_out.weight": (32, 64),
        },
        {"mamba_in": "128×32 v", "mamba_out": "32×64 u"},
    ),
    "gpt-oss, decoded from MXFP4": Published(
        "model.layers",
        {
            **{name: shape for name, shape in LLAMA_NAMES.items() if "mlp" not in name},
            "mlp.router.weight": (4, 32),
            "mlp.experts.gate_up_proj": (4, 64, 32),
            "mlp.experts.gate_up_proj_bias": (4, 64),
            "mlp.experts.down_proj": (4, 32, 32),
        },
        GROUPED
        | {
            "gate[E]": "32×32 v, 4 experts, rows 0…0 of each 2",
            "up[E]": "32×32 v, 4 experts, rows 1…1 of each 2",
            "down[E]": "32×32 u, 4 experts",
        },
        {"model_type": "gpt_oss"},
    ),
    "qwen3-vl-moe, experts stored transposed": Published(
        "model.language_model.layers",
        {
            **{name: shape for name, shape in LLAMA_NAMES.items() if "mlp" not in name},
            "mlp.experts.gate_up_proj": (4, 32, 48),
            "mlp.experts.down_proj": (4, 24, 32),
        },
        GROUPED
        | {
            "gate[E]": "24×32 v, 4 experts, transposed, rows 0…23 of 48",
            "up[E]": "24×32 v, 4 experts, transposed, rows 24…47 of 48",
            "down[E]": "32×24 u, 4 experts, transposed",
        },
        {"model_type": "qwen3_vl_moe", "text_config": {"model_type": "qwen3_vl_moe_text"}},
    ),
    "kimi linear": Published(
        "model.layers",
        {
            **NORMS,
            "self_attn.A_log": (1, 1, 4, 1),
            "self_attn.q_proj.weight": (32, 32),
            "self_attn.k_proj.weight": (32, 32),
            "self_attn.v_proj.weight": (32, 32),
            "self_attn.q_conv1d.weight": (32, 1, 4),
            "self_attn.f_a_proj.weight": (8, 32),
            "self_attn.o_proj.weight": (32, 32),
            "mlp.gate_proj.weight": (48, 32),
            "mlp.up_proj.weight": (48, 32),
            "mlp.down_proj.weight": (32, 48),
        },
        {"linear_q": "32×32 v", "linear_k": "32×32 v", "linear_v": "32×32 v", "linear_o": "32×32 u", **GATED},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_names(name):
    published = PUBLISHED[name]
    found = planned(layers(published.prefix, published.names) | published.besides, published.config)
    assert len(found.stacks) == 1
    for layer in range(3):
        described_layer = {place.projection: described(place) for place in found.placements if place.layer == layer}
        assert described_layer == published.expected


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model.", "a.b-c."])
def test_any_prefix_is_allowed(prefix):
    found = planned({prefix + name: shape for name, shape in layers("model.layers", LLAMA_NAMES).items()}, None)
    assert {place.projection: described(place) for place in found.placements} == GROUPED | GATED
    assert [stack.prefix for stack in found.stacks.values()] == [f"{prefix}model.layers"]


def test_openelm_has_other_heads_and_widths_in_every_layer():
    def layer(heads: int, groups: int, inner: int) -> Shapes:
        return {
            "attn_norm.weight": (32,),
            "ffn_norm.weight": (32,),
            "attn.q_norm.weight": (8,),
            "attn.k_norm.weight": (8,),
            "attn.qkv_proj.weight": (8 * (heads + 2 * groups), 32),
            "attn.out_proj.weight": (32, 8 * heads),
            "ffn.proj_1.weight": (2 * inner, 32),
            "ffn.proj_2.weight": (32, inner),
        }

    shapes = layers("transformer.layers", layer(4, 1, 24), range(1)) | layers(
        "transformer.layers", layer(6, 2, 40), range(1, 2)
    )
    found = planned(shapes, {"model_type": "openelm", "model_dim": 32})
    assert {(place.layer, place.projection): (place.rows, place.cols) for place in found.placements} == {
        (0, "q"): (32, 32), (0, "k"): (8, 32), (0, "v"): (8, 32), (0, "o"): (32, 32),
        (0, "gate"): (24, 32), (0, "up"): (24, 32), (0, "down"): (32, 24),
        (1, "q"): (48, 32), (1, "k"): (16, 32), (1, "v"): (16, 32), (1, "o"): (32, 48),
        (1, "gate"): (40, 32), (1, "up"): (40, 32), (1, "down"): (32, 40),
    }  # fmt: skip


def test_decilm_leaves_out_attention_or_replaces_it():
    shapes = layers("model.layers", LLAMA_NAMES, range(1))
    shapes |= {"model.layers.1.mlp.up_proj.weight": (20, 32), "model.layers.1.mlp.down_proj.weight": (32, 20)}
    shapes |= {"model.layers.1.post_attention_layernorm.weight": (32,)}
    shapes |= {"model.layers.2.self_attn.linear_attn.weight": (32, 32), "model.layers.2.input_layernorm.weight": (32,)}
    found = planned(shapes, {"model_type": "nemotron-nas"})
    by_layer = {layer: {place.projection for place in found.placements if place.layer == layer} for layer in range(3)}
    assert by_layer == {0: {*"qkvo", "gate", "up", "down"}, 1: {"up", "down"}, 2: {"attention_linear"}}
    assert [place.side for place in found.placements if place.layer == 2] == ["both"]


VIT_NAMES: Shapes = {
    "norm1.weight": (16,),
    "norm2.weight": (16,),
    "attn.qkv.weight": (48, 16),
    "attn.proj.weight": (16, 16),
    "mlp.fc1.weight": (20, 16),
    "mlp.fc2.weight": (16, 20),
}


def test_internvl_has_a_stack_for_vision_and_one_for_text():
    shapes = layers("vision_model.encoder.layers", VIT_NAMES) | layers(
        "language_model.model.layers", PUBLISHED["internlm2"].names
    )
    config = {
        "model_type": "internvl_chat",
        "llm_config": {"model_type": "internlm2", "num_attention_heads": 4, "num_key_value_heads": 2},
        "vision_config": {"model_type": "intern_vit_6b", "num_attention_heads": 2},
    }
    found = planned(shapes, config)
    assert {name: (stack.width, stack.layers) for name, stack in found.stacks.items()} == {
        "vision": (16, 3),
        "text": (32, 3),
    }
    text = {place.projection: described(place) for place in found.placements if place.stack == "text"}
    assert text == PUBLISHED["internlm2"].expected


def test_openclip_and_molmo_have_towers_of_residual_blocks():
    names: Shapes = {
        "ln_1.weight": (16,),
        "ln_2.weight": (16,),
        "attn.in_proj_weight": (48, 16),
        "attn.out_proj.weight": (16, 16),
        "mlp.c_fc.weight": (20, 16),
        "mlp.c_proj.weight": (16, 20),
    }
    found = planned(layers("visual.transformer.resblocks", names) | layers("transformer.resblocks", names), None)
    assert set(found.stacks) == {"vision", "text"}
    assert {place.projection for place in found.placements} == {*"qkvo", "up", "down"}
    molmo = {f"attention.{leaf}.weight": (16, 16) for leaf in ("wq", "wk", "wv", "wo")} | {
        "attention_norm.weight": (16,), "feed_forward.w1.weight": (20, 16), "feed_forward.w2.weight": (16, 20)
    }  # fmt: skip
    shapes = layers("model.vision_backbone.image_vit.transformer.resblocks", molmo) | layers(
        "model.transformer.blocks", PUBLISHED["olmo original"].names
    )
    found = planned(shapes, {"model_type": "molmo", "hidden_size": 32})
    assert {name: stack.width for name, stack in found.stacks.items()} == {"vision": 16, "text": 32}
    vision = {place.projection for place in found.placements if place.stack == "vision"}
    assert vision == {*"qkvo", "up", "down"}


@pytest.mark.parametrize("marker", ["eh_proj.weight", "nextn.eh_proj.weight"])
def test_a_layer_for_multi_token_prediction_is_a_stack_of_its_own(marker):
    shapes = layers("model.layers", LLAMA_NAMES, range(4)) | {f"model.layers.3.{marker}": (32, 64)}
    found = planned(shapes, {"model_type": "deepseek_v3", "num_hidden_layers": 3, "num_nextn_predict_layers": 1})
    assert {name: stack.layers for name, stack in found.stacks.items()} == {"layers": 3, "mtp": 1}
    assert {place.layer for place in found.placements if place.stack == "mtp"} == {3}
    assert found.notes == ()


def test_multi_token_prediction_beside_the_layers():
    found = planned(layers("model.layers", LLAMA_NAMES) | layers("mtp.layers", LLAMA_NAMES, range(1)), None)
    assert {name: stack.layers for name, stack in found.stacks.items()} == {"layers": 3, "mtp": 1}


def test_gguf_of_t5():
    attention: Shapes = {f"attn_{leaf}.weight": (32, 32) for leaf in ("q", "k", "v", "o")} | {
        "attn_norm.weight": (32,), "ffn_norm.weight": (32,), "ffn_up.weight": (48, 32), "ffn_down.weight": (32, 48)
    }  # fmt: skip
    cross: Shapes = {f"cross_attn_{leaf}.weight": (32, 32) for leaf in ("q", "k", "v", "o")}
    found = planned(layers("enc.blk", attention) | layers("dec.blk", attention | cross), None)
    assert set(found.stacks) == {"encoder", "decoder", "decoder cross-attention"}
    assert {place.projection for place in found.placements if place.stack == "encoder"} == {*"qkvo", "up", "down"}


def test_bert_as_a_decoder_keeps_its_cross_attention_apart():
    names: Shapes = {"attention.output.LayerNorm.weight": (32,)}
    for part in ("attention", "crossattention"):
        names |= {f"{part}.self.{leaf}.weight": (32, 32) for leaf in ("query", "key", "value")}
        names |= {f"{part}.output.dense.weight": (32, 32)}
    found = planned(layers("bert.encoder.layer", names), None)
    assert {name: stack.layers for name, stack in found.stacks.items()} == {"layers": 3, "layers cross-attention": 3}
    assert len(found.placements) == 2 * 4 * 3
