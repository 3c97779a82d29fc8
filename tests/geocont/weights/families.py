"""Tiny checkpoints of many families, made by transformers' own classes and saved by their own `save_pretrained`."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from geocont.weights.quantization import Weight
from torch import Tensor, nn

HIDDEN, FF, HEADS, GROUPS, HEAD, VOCABULARY, LAYERS = 32, 48, 4, 2, 8, 64, 3


@dataclass(frozen=True)
class Family:
    """One family: transformers' model type, the class that builds it, and what its config needs beyond the defaults."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    build: str = "AutoModelForCausalLM"


@dataclass(frozen=True)
class TinyCheckpoint:
    """What was saved of a family: config.json, the tensors under their names in the file, and the model itself."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(repr=False)
    model: nn.Module = field(repr=False)

    @property
    def weights(self) -> dict[str, Weight]:
        return {
            name: Weight(
                name=name,
                shape=tuple(tensor.shape),
                dtype="F32",
                bytes=tensor.nbytes,
                quantized=False,
                refused="",
                sources=(name,),
            )
            for name, tensor in self.tensors.items()
        }


LLAMA: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": FF,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WITH_HEAD = LLAMA | {"head_dim": 12}
BERT: dict[str, Any] = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
GPT2: dict[str, Any] = {
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_inner": FF,
    "n_positions": 64,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
VISION: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": FF,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "image_size": 32,
    "patch_size": 16,
}
BART: dict[str, Any] = {
    "d_model": HIDDEN,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_ffn_dim": FF,
    "decoder_ffn_dim": FF,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
T5: dict[str, Any] = {
    "d_model": HIDDEN,
    "d_kv": HEAD,
    "d_ff": FF,
    "num_layers": LAYERS,
    "num_decoder_layers": 2,
    "num_heads": HEADS,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
MLA: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "num_key_value_heads": HEADS,
}
DEEPSEEK = (
    LLAMA
    | MLA
    | {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    }
)
SEQ2SEQ = "AutoModelForSeq2SeqLM"
PLAIN = "AutoModel"
IMAGE_TEXT = "AutoModelForImageTextToText"

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", LLAMA),
    "llama_head_dim": Family("llama", WITH_HEAD),
    "llama_square": Family("llama", LLAMA | {"num_key_value_heads": HEADS, "intermediate_size": HIDDEN}),
    "mistral": Family("mistral", WITH_HEAD),
    "ministral": Family("ministral", WITH_HEAD),
    "qwen2": Family("qwen2", LLAMA),
    "qwen3": Family("qwen3", WITH_HEAD),
    "gemma": Family("gemma", WITH_HEAD),
    "gemma2": Family("gemma2", WITH_HEAD),
    "gemma3_text": Family("gemma3_text", WITH_HEAD),
    "cohere": Family("cohere", LLAMA),
    "cohere2": Family("cohere2", LLAMA),
    "olmo": Family("olmo", LLAMA),
    "olmo2": Family("olmo2", LLAMA),
    "olmo3": Family("olmo3", LLAMA),
    "stablelm": Family("stablelm", LLAMA),
    "granite": Family("granite", LLAMA),
    "smollm3": Family("smollm3", LLAMA),
    "ernie4_5": Family("ernie4_5", LLAMA),
    "exaone4": Family("exaone4", LLAMA),
    "seed_oss": Family("seed_oss", WITH_HEAD),
    "helium": Family("helium", WITH_HEAD),
    "hunyuan_v1_dense": Family("hunyuan_v1_dense", WITH_HEAD),
    "bitnet": Family("bitnet", LLAMA),
    "diffllama": Family("diffllama", LLAMA),
    "phi": Family("phi", LLAMA),
    "nanochat": Family("nanochat", LLAMA),
    "nemotron": Family("nemotron", LLAMA),
    "arcee": Family("arcee", LLAMA),
    "apertus": Family("apertus", LLAMA),
    "phi3": Family("phi3", LLAMA),
    "glm": Family("glm", WITH_HEAD),
    "glm4": Family("glm4", WITH_HEAD),
    "gpt2": Family("gpt2", GPT2),
    "openai-gpt": Family("openai-gpt", GPT2),
    "gpt_bigcode": Family("gpt_bigcode", GPT2 | {"multi_query": True}),
    "gpt_bigcode_heads": Family("gpt_bigcode", GPT2 | {"multi_query": False}),
    "gpt_neo": Family(
        "gpt_neo",
        {
            "hidden_size": HIDDEN,
            "num_layers": 2,
            "num_heads": HEADS,
            "attention_types": [[["global", "local"], 1]],
            "intermediate_size": FF,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
        },
    ),
    "gptj": Family("gptj", GPT2 | {"rotary_dim": 4}),
    "codegen": Family("codegen", GPT2 | {"rotary_dim": 4}),
    "gpt_neox": Family("gpt_neox", BERT),
    "bloom": Family("bloom", {"hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCABULARY}),
    "falcon_rw": Family(
        "falcon", BERT | {"multi_query": False, "alibi": True, "ffn_hidden_size": FF, "parallel_attn": False}
    ),
    "falcon_7b": Family("falcon", BERT | {"multi_query": True, "ffn_hidden_size": FF}),
    "falcon_40b": Family(
        "falcon", BERT | {"new_decoder_architecture": True, "num_kv_heads": GROUPS, "ffn_hidden_size": FF}
    ),
    "persimmon": Family("persimmon", BERT),
    "mpt": Family(
        "mpt", {"d_model": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS, "vocab_size": VOCABULARY, "max_seq_len": 64}
    ),
    "starcoder2": Family("starcoder2", LLAMA),
    "opt": Family(
        "opt",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "ffn_dim": FF,
            "num_attention_heads": HEADS,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 16,
            "do_layer_norm_before": False,
        },
    ),
    "xglm": Family(
        "xglm",
        {
            "d_model": HIDDEN,
            "ffn_dim": FF,
            "num_layers": LAYERS,
            "attention_heads": HEADS,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
        },
    ),
    "biogpt": Family("biogpt", BERT),
    "ctrl": Family(
        "ctrl",
        {"n_embd": HIDDEN, "dff": FF, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCABULARY, "n_positions": 64},
    ),
    "bart": Family("bart", BART, SEQ2SEQ),
    "m2m_100": Family("m2m_100", BART, SEQ2SEQ),
    "pegasus": Family("pegasus", BART, SEQ2SEQ),
    "marian": Family("marian", BART, SEQ2SEQ),
    "whisper": Family(
        "whisper",
        BART | {"num_mel_bins": 8, "max_source_positions": 32, "max_target_positions": 32},
        "AutoModelForSpeechSeq2Seq",
    ),
    "t5": Family("t5", T5, SEQ2SEQ),
    "flan_t5": Family("t5", T5 | {"feed_forward_proj": "gated-gelu"}, SEQ2SEQ),
    "umt5": Family("umt5", T5, SEQ2SEQ),
    "longt5": Family("longt5", T5, SEQ2SEQ),
    "switch_transformers": Family(
        "switch_transformers",
        T5 | {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        SEQ2SEQ,
    ),
    "bert": Family("bert", BERT, PLAIN),
    "roberta": Family("roberta", BERT, "AutoModelForMaskedLM"),
    "electra": Family("electra", BERT | {"embedding_size": 16}, PLAIN),
    "esm": Family("esm", BERT, PLAIN),
    "deberta": Family("deberta", BERT, PLAIN),
    "deberta-v2": Family("deberta-v2", BERT, PLAIN),
    "distilbert": Family(
        "distilbert",
        {"dim": HIDDEN, "hidden_dim": FF, "n_layers": LAYERS, "n_heads": HEADS, "vocab_size": VOCABULARY},
        PLAIN,
    ),
    "mpnet": Family("mpnet", BERT, PLAIN),
    "modernbert": Family("modernbert", BERT, PLAIN),
    "nomic_bert": Family("nomic_bert", BERT, PLAIN),
    "albert": Family("albert", BERT | {"embedding_size": 16}, PLAIN),
    "vit": Family("vit", VISION, PLAIN),
    "deit": Family("deit", VISION, PLAIN),
    "beit": Family("beit", VISION, PLAIN),
    "dinov2": Family("dinov2", VISION | {"mlp_ratio": 2}, PLAIN),
    "dinov2_swiglu": Family("dinov2", VISION | {"use_swiglu_ffn": True}, PLAIN),
    "clip": Family(
        "clip",
        {
            "text_config": BERT | {"hidden_size": 24},
            "vision_config": VISION,
            "projection_dim": 16,
        },
        PLAIN,
    ),
    "siglip": Family("siglip", {"text_config": BERT, "vision_config": VISION}, PLAIN),
    "swin": Family(
        "swin",
        {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "image_size": 32, "patch_size": 4, "window_size": 4},
        PLAIN,
    ),
    "segformer": Family(
        "segformer",
        {
            "num_encoder_blocks": 2,
            "depths": [2, 2],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [4, 4],
        },
        PLAIN,
    ),
    "mixtral": Family("mixtral", LLAMA | {"num_local_experts": 4}),
    "phimoe": Family("phimoe", LLAMA | {"num_local_experts": 4}),
    "minimax": Family(
        "minimax",
        LLAMA
        | {
            "num_local_experts": 4,
            "head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
        },
    ),
    "qwen2_moe": Family(
        "qwen2_moe", LLAMA | EXPERTS | {"shared_expert_intermediate_size": 40, "decoder_sparse_step": 1}
    ),
    "qwen3_moe": Family("qwen3_moe", WITH_HEAD | EXPERTS | {"mlp_only_layers": [0]}),
    "olmoe": Family("olmoe", LLAMA | {"num_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v2": Family("deepseek_v2", DEEPSEEK),
    "deepseek_v2_lite": Family("deepseek_v2", DEEPSEEK | {"q_lora_rank": None}),
    "deepseek_v3": Family("deepseek_v3", DEEPSEEK),
    "glm4_moe": Family(
        "glm4_moe",
        WITH_HEAD
        | {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
        },
    ),
    "ernie4_5_moe": Family(
        "ernie4_5_moe",
        LLAMA | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 1},
    ),
    "hunyuan_v1_moe": Family("hunyuan_v1_moe", WITH_HEAD | {"num_experts": 4, "moe_topk": 2}),
    "minicpm3": Family("minicpm3", LLAMA | MLA),
    "gpt_oss": Family("gpt_oss", WITH_HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss_square": Family(
        "gpt_oss", WITH_HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": HIDDEN}
    ),
    "llama4_text": Family(
        "llama4_text",
        LLAMA
        | {
            "intermediate_size_mlp": 40,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "head_dim": 8,
            "num_hidden_layers": 4,
        },
    ),
    "granitemoe": Family("granitemoe", LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "granitemoehybrid": Family(
        "granitemoehybrid",
        LLAMA
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
            "layer_types": ["mamba", "attention", "mamba", "attention"],
            "num_hidden_layers": 4,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_expand": 2,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
        },
    ),
    "jetmoe": Family(
        "jetmoe",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": 2,
            "kv_channels": HEAD,
            "intermediate_size": FF,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "vocab_size": VOCABULARY,
        },
    ),
    "dbrx": Family(
        "dbrx",
        {
            "d_model": HIDDEN,
            "n_heads": HEADS,
            "n_layers": LAYERS,
            "vocab_size": VOCABULARY,
            "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": HIDDEN},
        },
    ),
    "mamba": Family(
        "mamba", {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "state_size": 8}
    ),
    "mamba2": Family(
        "mamba2",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "vocab_size": VOCABULARY,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
        },
    ),
    "falcon_mamba": Family(
        "falcon_mamba", {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "state_size": 8}
    ),
    "jamba": Family(
        "jamba",
        LLAMA
        | {
            "num_experts": 4,
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "bamba": Family(
        "bamba",
        LLAMA
        | {
            "attn_layer_indices": [1, 3],
            "num_hidden_layers": 4,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_expand": 2,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
        },
    ),
    "qwen3_next": Family(
        "qwen3_next",
        WITH_HEAD
        | EXPERTS
        | {
            "shared_expert_intermediate_size": 40,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "qwen3_5_text": Family(
        "qwen3_5_text",
        WITH_HEAD
        | {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "olmo_hybrid": Family(
        "olmo_hybrid",
        LLAMA
        | {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "falcon_h1": Family(
        "falcon_h1",
        LLAMA
        | {
            "head_dim": 8,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
        },
    ),
    "lfm2": Family(
        "lfm2", LLAMA | {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_hidden_layers": 4}
    ),
    "recurrent_gemma": Family(
        "recurrent_gemma",
        LLAMA | {"num_hidden_layers": 6, "head_dim": 8, "lru_width": HIDDEN, "attention_window_size": 16},
    ),
    "nemotron_h": Family(
        "nemotron_h",
        LLAMA
        | {
            "hybrid_override_pattern": "M-*-M-*-",
            "num_hidden_layers": 8,
            "head_dim": 8,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
        },
    ),
    "gemma3n_text": Family(
        "gemma3n_text",
        WITH_HEAD
        | {
            "num_hidden_layers": 5,
            "layer_types": ["full_attention"] * 5,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "laurel_rank": 4,
            "activation_sparsity_pattern": None,
            "intermediate_size": [48] * 5,
        },
    ),
    "gemma4_text": Family(
        "gemma4_text",
        LLAMA
        | {
            "head_dim": 8,
            "global_head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 1,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
        },
    ),
    "zamba2": Family(
        "zamba2",
        LLAMA
        | {
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "n_mamba_heads": 8,
            "mamba_d_state": 8,
            "mamba_expand": 2,
            "mamba_ngroups": 1,
            "num_mem_blocks": 1,
            "use_mem_rope": True,
            "adapter_rank": 4,
        },
    ),
    "llava": Family(
        "llava",
        {"text_config": LLAMA | {"model_type": "llama"}, "vision_config": VISION | {"model_type": "clip_vision_model"}},
        IMAGE_TEXT,
    ),
    "mllama": Family(
        "mllama",
        {
            "text_config": LLAMA | {"num_hidden_layers": 4, "cross_attention_layers": [1, 3]},
            "vision_config": {
                "hidden_size": HIDDEN,
                "intermediate_size": FF,
                "num_hidden_layers": 2,
                "num_global_layers": 2,
                "attention_heads": 4,
                "image_size": 32,
                "patch_size": 16,
                "vision_output_dim": 64,
                "intermediate_layers_indices": [0],
                "max_num_tiles": 1,
                "supported_aspect_ratios": [[1, 1]],
            },
        },
        IMAGE_TEXT,
    ),
    "qwen2_vl": Family(
        "qwen2_vl",
        {
            "text_config": LLAMA
            | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}},
            "vision_config": {"embed_dim": 16, "depth": 2, "num_heads": 2, "hidden_size": HIDDEN, "patch_size": 4},
        },
        IMAGE_TEXT,
    ),
    "qwen2_5_vl": Family(
        "qwen2_5_vl",
        {
            "text_config": LLAMA
            | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 24,
                "depth": 2,
                "num_heads": 2,
                "out_hidden_size": HIDDEN,
                "patch_size": 4,
            },
        },
        IMAGE_TEXT,
    ),
    "gpt_neox_japanese": Family("gpt_neox_japanese", BERT | {"intermediate_multiple_size": 2}),
    "imagegpt": Family("imagegpt", GPT2, PLAIN),
    "fuyu": Family("fuyu", {"text_config": BERT | {"model_type": "persimmon"}}, IMAGE_TEXT),
    "dinov3_vit": Family("dinov3_vit", VISION, PLAIN),
    "wav2vec2": Family(
        "wav2vec2",
        BERT
        | {
            "conv_dim": [8],
            "conv_kernel": [4],
            "conv_stride": [4],
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
        PLAIN,
    ),
    "rwkv": Family(
        "rwkv",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "vocab_size": VOCABULARY,
            "attention_hidden_size": HIDDEN,
            "intermediate_size": FF,
        },
    ),
    "moonshine": Family(
        "moonshine",
        {
            "hidden_size": HIDDEN,
            "intermediate_size": FF,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": HEADS,
            "decoder_num_attention_heads": HEADS,
            "vocab_size": VOCABULARY,
        },
        "AutoModelForSpeechSeq2Seq",
    ),
    "t5gemma": Family("t5gemma", {"encoder": WITH_HEAD, "decoder": WITH_HEAD}, SEQ2SEQ),
    "deepseek_v32": Family("deepseek_v32", DEEPSEEK | {"index_n_heads": 2, "index_head_dim": 8}),
    "minimax_m2": Family("minimax_m2", WITH_HEAD | {"num_local_experts": 4}),
    "lfm2_moe": Family(
        "lfm2_moe",
        LLAMA
        | EXPERTS
        | {
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "num_hidden_layers": 4,
            "num_dense_layers": 1,
        },
    ),
    "phi4_multimodal": Family(
        "phi4_multimodal",
        LLAMA
        | {
            "audio_config": {
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_blocks": 2,
                "num_attention_heads": 2,
                "nemo_conv_channels": 16,
                "ext_pw_out_channel": 16,
            },
            "vision_config": VISION | {"crop_size": 32},
        },
    ),
    "qwen3_vl_moe": Family(
        "qwen3_vl_moe",
        {
            "text_config": WITH_HEAD
            | EXPERTS
            | {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}},
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 24,
                "depth": 2,
                "num_heads": 2,
                "out_hidden_size": HIDDEN,
                "patch_size": 4,
                "deepstack_visual_indexes": [0],
            },
        },
        IMAGE_TEXT,
    ),
    "gemma3": Family(
        "gemma3", {"text_config": WITH_HEAD, "vision_config": VISION, "mm_tokens_per_image": 4}, IMAGE_TEXT
    ),
}


def make(family: Family, folder: Path) -> TinyCheckpoint:
    """Build a family from its config with seeded weights, save it with save_pretrained, read the file back."""
    import transformers
    from safetensors.torch import load_file

    config = transformers.AutoConfig.for_model(family.model_type, **family.config)
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, family.build).from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Without biases a module's outputs are its matrix times its inputs.
            parameter.zero_() if name.endswith("bias") else parameter.normal_()
    model.eval()
    model.save_pretrained(folder)
    return TinyCheckpoint(
        config=json.loads((folder / "config.json").read_text("utf-8")),
        tensors=load_file(folder / "model.safetensors"),
        model=model,
    )
