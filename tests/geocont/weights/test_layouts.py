"""The table of layouts, the cuts it speaks of, orientation, stacks, and what is refused or left out."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from geocont.errors import InputError
from geocont.events import MatrixPlan
from geocont.weights.layouts import LAYOUT_VERSION, Cut, Placement, Plan, plan, read_layouts
from geocont.weights.quantization import Weight
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]
LAYOUTS = read_layouts()
LLAMA: Shapes = {
    "input_layernorm.weight": (32,),
    "post_attention_layernorm.weight": (32,),
    "self_attn.q_proj.weight": (32, 32),
    "self_attn.k_proj.weight": (16, 32),
    "self_attn.v_proj.weight": (16, 32),
    "self_attn.o_proj.weight": (32, 32),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
}
NEOX: Shapes = {
    "input_layernorm.weight": (32,),
    "attention.query_key_value.weight": (96, 32),
    "attention.dense.weight": (32, 32),
    "mlp.dense_h_to_4h.weight": (48, 32),
    "mlp.dense_4h_to_h.weight": (32, 48),
}


def weight(name: str, shape: tuple[int, ...], refused: str = "", size: int = 1000) -> Weight:
    return Weight(name, shape, "BF16", size, quantized=bool(refused), refused=refused, sources=(name,))


def layers(names: Shapes, prefix: str = "model.layers", numbers: range = range(3)) -> Shapes:
    return {f"{prefix}.{number}.{rest}": shape for number in numbers for rest, shape in names.items()}


def planned(shapes: Shapes, config: dict[str, Any] | None = None, layouts: Any = LAYOUTS) -> Plan:
    return plan({name: weight(name, shape) for name, shape in shapes.items()}, config, layouts)


def one(found: Plan, projection: str, layer: int = 0) -> Placement:
    (placement,) = [place for place in found.placements if (place.projection, place.layer) == (projection, layer)]
    return placement


def table(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(text, "utf-8")
    return file


# ---------------------------------------------------------------------------------------------------------- the table


def test_the_shipped_table_is_read():
    assert LAYOUT_VERSION >= 1
    assert len(LAYOUTS) > 80
    assert all(layout.id for layout in LAYOUTS)


def test_rows_of_the_user_come_first(tmp_path):
    file = table(tmp_path, '[[layout]]\nid = "mine"\npattern = "mlp\\\\.(?:up|gate)_proj"\nprojections = ["wide"]\n')
    mine, *rest = read_layouts(file)
    assert (mine.id, mine.projections) == ("mine", ("wide",))
    assert tuple(rest) == LAYOUTS


def test_a_row_of_the_user_decides_and_its_name_needs_no_side(tmp_path):
    file = table(tmp_path, '[[layout]]\nid = "mine"\npattern = \'{mlp}\\.up_proj\'\nprojections = ["wide"]\n')
    found = planned(layers(LLAMA), None, read_layouts(file))
    assert one(found, "wide").rule == "mine"
    assert one(found, "wide").side == "v"
    assert "up" not in {place.projection for place in found.placements}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('id = "x"\npattern = "q"\nprojections = ["q"]\ncolour = "red"', "colour"),
        ('id = "x"\npattern = "q("\nprojections = ["q"]', "pattern is no regular expression"),
        ('id = "x"\npattern = "q"\nprojections = ["q"]\nsibling = "["', "sibling is no regular expression"),
        ('id = "x"\npattern = "q"\nprojections = ["q", "k"]\ncut = "diagonal"', "diagonal"),
        ('id = "x"\npattern = "{attentoin}.q"\nprojections = ["q"]', "{attentoin}"),
        ('id = "x"\npattern = 7\nprojections = ["q"]', "pattern"),
        ('id = "x"\nprojections = ["q"]', "pattern"),
        ('id = "x"\npattern = "q"', "does not fit 0 projections"),
        ('id = "x"\npattern = "q"\nprojections = ["q", "k"]', "does not fit 2 projections"),
        ('id = "x"\npattern = "q"\nprojections = ["q"]\ncut = "heads"', "does not fit 1 projections"),
        ('id = "x"\npattern = "q"\nprojections = ["q", "k"]\ncut = "groups"', "a query, a key and a value"),
        ('id = "x"\npattern = "q"\ncut = "skip"', "reason"),
        ('id = "x"\npattern = "q"\nprojections = ["q", "k[E]"]\ncut = "equal"', "do not go together"),
        ('id = "x"\npattern = "q"\nprojections = ["q", "q"]\ncut = "equal"', "do not go together"),
        ('id = "x"\npattern = "e.(?P<expert>.)"\nprojections = ["q"]', "[E]"),
    ],
)
def test_a_bad_row_is_refused_with_its_id(tmp_path, row, problem):
    with pytest.raises(InputError) as caught:
        read_layouts(table(tmp_path, f"[[layout]]\n{row}\n"))
    assert "layout 'x'" in str(caught.value)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["[[layouts]]\nid = 'x'", "layout = 3", "layout = [3]", "[index]\na = 1", "= 3"])
def test_a_file_that_is_no_table_of_layouts_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"mine\.toml") as caught:
        read_layouts(table(tmp_path, text))
    assert caught.value.remedy


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_layouts(tmp_path / "none.toml")
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"mine\.toml is not a text file"):
        read_layouts(tmp_path / "mine.toml")


# --------------------------------------------------------------------------------------------------------------- cuts


@given(
    heads=st.integers(1, 6), groups=st.integers(1, 4), size=st.integers(1, 5), cut=st.sampled_from(["heads", "groups"])
)
@settings(max_examples=60, deadline=None)
def test_fused_rows_are_shared_out_by_head_or_by_group(heads, groups, size, cut):
    """A row is named by its projection, its head and its place; the cut gives each projection its rows in order."""
    repeats = heads if cut == "heads" else groups
    queries = 1 if cut == "heads" else heads
    names = [
        (projection, head)
        for repeat in range(repeats)
        for projection, head in [
            *(("q", repeat * queries + query) for query in range(queries)),
            ("k", repeat),
            ("v", repeat),
        ]
    ]
    rows = len(names) * size
    width = rows + 1  # a width of its own, so that nothing is square
    shapes = {
        "input_layernorm.weight": (width,),
        "attention.query_key_value.weight": (rows, width),
        "attention.wqkv.weight": (rows, width),
    }
    config = {"num_attention_heads": queries * repeats, "num_key_value_heads": groups}
    if cut == "heads":
        del shapes["attention.wqkv.weight"]
        config["model_type"] = "gpt_neox"
    else:
        del shapes["attention.query_key_value.weight"]
        config["model_type"] = "internlm2"
    found = planned(layers(shapes), config)
    stored = torch.arange(rows * width).view(rows, width)
    for projection in "qkv":
        (matrix,) = one(found, projection).matrices(lambda _: stored)
        wanted = [
            number * size + place
            for number, (name, _) in enumerate(names)
            if name == projection
            for place in range(size)
        ]
        assert matrix.tolist() == stored[wanted].tolist()


def test_a_cut_copies_nothing_if_its_rows_lie_together():
    stored = torch.randn(12, 5)
    together = Cut(1, 12, 3, 7)
    assert together.of(stored).data_ptr() == stored[3:].data_ptr()
    assert torch.equal(together.of(stored), stored[3:7])
    assert torch.equal(Cut(6, 2, 1, 2).of(stored), stored[1::2])
    assert torch.equal(Cut(6, 2, 1, 2).of(torch.randn(5, 12).mT.copy_(stored)), stored[1::2])


def test_experts_are_yielded_one_by_one_in_the_order_of_their_numbers():
    names = {"input_layernorm.weight": (32,)} | {f"mlp.experts.{e}.down_proj.weight": (32, 24) for e in range(12)}
    place = one(planned(layers(names)), "down[E]")
    asked: list[str] = []

    def read(name: str) -> Tensor:
        asked.append(name)
        return torch.full((32, 24), float(name.split(".")[5]))

    matrices = place.matrices(read)
    assert next(matrices)[0, 0] == 0
    assert len(asked) == 1
    assert [matrix[0, 0].item() for matrix in matrices] == list(range(1, 12))
    assert (place.experts, place.rows, place.cols, place.bytes) == (12, 32, 24, 12_000)


def test_experts_of_differing_shape_are_not_taken_together():
    names: Shapes = {"input_layernorm.weight": (32,)}
    names |= {"mlp.experts.0.up_proj.weight": (24, 32), "mlp.experts.1.up_proj.weight": (20, 32)}
    place = one(planned(layers(names)), "up[E]")
    assert (place.status, place.note) == ("unsplit", "its experts differ in shape")


def test_stacked_experts_are_views_of_one_tensor():
    names = {"input_layernorm.weight": (32,), "mlp.experts.gate_up_proj": (4, 32, 48), "mlp.router.weight": (4, 32)}
    found = planned(layers(names), {"model_type": "llama4"})
    stored = torch.randn(4, 32, 48)
    gates = list(one(found, "gate[E]").matrices(lambda _: stored))
    assert [gate.shape for gate in gates] == [(24, 32)] * 4
    assert all(torch.equal(gate, stored[e].mT[:24]) for e, gate in enumerate(gates))
    assert gates[2].untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()


def test_equal_views_are_said_in_equal_words():
    found = planned(layers(NEOX), {"model_type": "gpt_neox", "num_attention_heads": 4})
    assert one(found, "k").view == "rows 8…15 of each 24"
    assert one(found, "o").view == ""
    assert len({one(found, projection).view for projection in "qkv"}) == 3


# --------------------------------------------------------------------------------------------- what is not guessed


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "without config.json"),
        ({}, "no model_type"),
        ({"model_type": "gpt_next"}, "model type 'gpt_next'"),
        ({"model_type": "gpt_neox"}, "does not give the number of heads"),
        ({"model_type": "gpt_neox", "num_attention_heads": 5}, "no multiple of 15"),
        ({"model_type": "gpt_neox", "num_attention_heads": True}, "does not give the number of heads"),
        ({"model_type": "falcon", "num_attention_heads": 4}, "model type 'falcon'"),
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "num_attention_heads": 4, "num_kv_heads": 3},
            "that 3 divides",
        ),
    ],
)
def test_a_fused_tensor_is_left_unsplit_with_the_reason(config, reason):
    place = one(planned(layers(NEOX), config), "q+k+v")
    assert (place.status, place.side, place.rows, place.cols) == ("unsplit", "v", 96, 32)
    assert reason in place.note
    assert "attention.query_key_value" in place.note


@pytest.mark.parametrize("output", [None, (32, 96), (32, 95)])
def test_a_concatenation_needs_an_output_projection_that_fits(output):
    names: Shapes = {"norm_1.weight": (32,), "attn.Wqkv.weight": (96, 32), "ffn.up_proj.weight": (48, 32)}
    if output:
        names["attn.out_proj.weight"] = output
    place = one(planned(layers(names)), "q+k+v") if output is None else one(planned(layers(names), {}), "q+k+v")
    assert place.status == "unsplit"


def test_a_fused_tensor_of_a_vision_tower_does_not_take_the_text_s_heads():
    config = {
        "model_type": "gpt_neox",
        "num_attention_heads": 4,
        "text_config": {"model_type": "gpt_neox", "num_attention_heads": 4},
        "vision_config": {"model_type": "gpt_neox"},
    }
    found = planned(layers(NEOX, "vision_tower.layers") | layers(NEOX, "model.language_model.layers"), config)
    assert {place.stack for place in found.placements if place.status == "unsplit"} == {"vision"}


def test_refused_weights_are_placed_with_their_reason():
    weights = {name: weight(name, shape) for name, shape in layers(LLAMA).items()}
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        weights[name] = weight(name, (512, 1), "bitsandbytes 4 bit; analyse the base model")
    found = plan(weights, None, LAYOUTS)
    for projection, side in (("q", "v"), ("down", "u")):
        place = one(found, projection, 1)
        assert (place.status, place.side) == ("quantized_refused", side)
        assert "bitsandbytes" in place.note
        assert one(found, projection, 0).status == "ok"


def test_refused_fused_and_gptq_names_are_recognised():
    names = {"attention.query_key_value.qweight": (4, 96), "attention.dense.qweight": (4, 32)}
    weights = {name: weight(name, shape, "GPTQ") for name, shape in layers(names).items()}
    found = plan(weights, {"model_type": "gpt_neox", "num_attention_heads": 4}, LAYOUTS)
    assert {(place.projection, place.status) for place in found.placements} == {
        ("q+k+v", "quantized_refused"), ("o", "quantized_refused")
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------- orientation


GPT2_SQUARE: Shapes = {
    "ln_1.weight": (32,),
    "attn.c_attn.weight": (32, 96),
    "attn.c_proj.weight": (32, 32),
    "mlp.c_fc.weight": (32, 32),
    "mlp.c_proj.weight": (32, 32),
}


@pytest.mark.parametrize(("fused", "transposed"), [((32, 96), True), ((96, 32), False)])
def test_square_matrices_follow_the_others_of_their_stack(fused, transposed):
    config = {"model_type": "gpt_bigcode", "multi_query": False, "n_head": 4}
    found = planned(layers(GPT2_SQUARE | {"attn.c_attn.weight": fused}), config)
    assert {place.transposed for place in found.placements} == {transposed}


@pytest.mark.parametrize(("model_type", "transposed"), [("gpt2", True), ("gpt_bigcode", False), (None, False)])
def test_where_all_is_square_the_family_decides(model_type, transposed):
    names = {name: shape for name, shape in GPT2_SQUARE.items() if "c_attn" not in name}
    found = planned(layers(names), {"model_type": model_type} if model_type else None)
    assert {place.transposed for place in found.placements} == {transposed}
    stored = torch.randn(32, 32)
    (matrix,) = one(found, "o").matrices(lambda _: stored)
    assert torch.equal(matrix, stored.mT if transposed else stored)


def test_square_experts_follow_the_experts_not_the_attention():
    names = LLAMA | {"mlp.experts.gate_up_proj": (4, 32, 64), "mlp.experts.down_proj": (4, 32, 32)}
    found = planned(layers(names), {"model_type": "gpt_oss"})
    assert one(found, "down[E]").transposed
    assert not one(found, "o").transposed


def test_the_residual_width_is_the_norms_not_the_heads():
    heads = {"self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,), "self_attn.q_a_layernorm.weight": (8,)}
    found = planned(layers(LLAMA | heads))
    assert found.stacks["layers"].width == 32
    names = {"block_norm.weight" if "norm" in name else name: shape for name, shape in LLAMA.items()}
    assert planned(layers(names | {"mlp.fan.weight": (48, 48)}), {"hidden_size": 48}).stacks["layers"].width == 32


@pytest.mark.parametrize(("config", "width"), [({"hidden_size": 32}, 32), (None, 40)])
def test_without_norms_the_width_is_config_s_or_the_commonest_size(config, width):
    names = {
        "self_attn.q_proj.weight": (40, 32),
        "self_attn.k_proj.weight": (40, 32),
        "self_attn.v_proj.weight": (40, 8),
    }
    found = planned(layers(names), config)
    assert found.stacks["layers"].width == width
    assert one(found, "q").transposed == (width == 40)


def test_of_two_equally_common_sizes_the_smaller_is_the_width():
    found = planned(layers({"lin1.weight": (48, 32), "lin2.weight": (32, 48)}, "ffns"))
    assert found.stacks["ffns"].width == 32
    assert {place.projection: place.side for place in found.placements} == {"lin1": "v", "lin2": "u"}


@pytest.mark.parametrize("shape", [(8, 40), (40, 8)])
def test_a_width_that_nothing_tells_is_not_guessed_and_said(shape):
    found = one(planned(layers({"self_attn.k_proj.weight": shape})), "k")
    assert (found.rows, found.cols, found.side) == (*shape, "v")
    assert "the width of the residual stream is not known" in found.note
    known = one(planned(layers({"self_attn.k_proj.weight": shape}), {"hidden_size": 40}), "k")
    assert (known.rows, known.cols, known.side, known.note) == (8, 40, "v", "")
    unknown = planned({f"a.{number}.b.weight": shape for number in range(3)}).placements[0]
    assert (unknown.rows, unknown.cols, unknown.side) == (*shape, "none")
    assert "is not known" in unknown.note


def test_tensors_that_are_no_matrices_are_said_to_be_none():
    with pytest.raises(InputError) as refused:
        planned(layers({"self_attn.q_proj.weight": (4, 4, 3, 3)}))
    assert "q_proj.weight (3, a convolution or another tensor that is no matrix)" in refused.value.remedy
    assert "Save each projection as a matrix" in refused.value.remedy


def test_a_pattern_that_is_nested_beyond_reason_is_no_regular_expression(tmp_path):
    pattern = "(" * 3000 + ")" * 3000
    with pytest.raises(InputError, match="is no regular expression"):
        read_layouts(table(tmp_path, f'[[layout]]\nid = "mine"\npattern = "{pattern}"\nprojections = ["q"]\n'))


def test_rows_of_experts_may_make_a_square():
    names = {"norm_attn_norm.norm_1.weight": (32,), "ffn.experts.mlp.w1": (32, 32), "ffn.experts.mlp.w2": (32, 32)}
    found = planned(layers(names), {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 4}})
    stored = torch.randn(32, 32)
    assert torch.equal(next(one(found, "gate[E]").matrices(lambda _: stored)), stored[:8])
    assert torch.equal(next(one(found, "down[E]").matrices(lambda _: stored)), stored[:8].mT)


def test_cross_attention_says_which_of_it_reads_the_encoder():
    names = {"layer_norm.weight": (32,)} | {f"encoder_attn.{leaf}.weight": (32, 32) for leaf in ("q_proj", "k_proj")}
    found = planned(layers(names))
    assert one(found, "q").note == ""
    assert one(found, "k").note == "reads the encoder's output"


def test_a_reader_of_something_else_is_an_inner_matrix():
    found = planned(layers(LLAMA | {"self_attn.q_proj.weight": (64, 48)}))
    place = one(found, "q")
    assert (place.side, place.note) == ("none", "has 48 inputs, the residual stream 32")


# ------------------------------------------------------------------------------------------------- stacks and layers


def test_layers_are_in_the_order_of_their_numbers_and_may_have_gaps():
    shapes = layers(LLAMA, numbers=range(12))
    for number in (3, 10):
        del shapes[f"model.layers.{number}.self_attn.q_proj.weight"]
    found = planned(dict(sorted(shapes.items())), {"num_hidden_layers": 12})
    assert [place.layer for place in found.placements if place.projection == "q"] == [0, 1, 2, 4, 5, 6, 7, 8, 9, 11]
    assert [place.projection for place in found.placements if place.layer == 11] == [*"qkvo", "gate", "up", "down"]
    assert found.notes == ()


def test_missing_layers_are_noted():
    found = planned(layers(LLAMA), {"num_hidden_layers": 12})
    assert found.notes == ("config.json tells of 12 layers, the weights of 3",)


@pytest.mark.parametrize(
    ("prefixes", "names"),
    [
        (["model.layers"], ["layers"]),
        (["bert.encoder.layer"], ["layers"]),
        (["model.encoder.layers", "model.decoder.layers"], ["encoder", "decoder"]),
        (["model.layers", "visual.blocks"], ["text", "vision"]),
        (["model.language_model.layers", "model.vision_tower.vision_model.encoder.layers"], ["text", "vision"]),
        (["thinker.audio_tower.layers", "thinker.model.layers"], ["audio", "text"]),
        (["a.layers", "b.layers"], ["a.layers", "b.layers"]),
        (["encoder.layers.0.blocks", "encoder.layers.1.blocks"], ["stage 0", "stage 1"]),
        (["v.blk", "blk"], ["vision", "text"]),
    ],
)
def test_stacks_are_called_by_what_tells_them_apart(prefixes, names):
    shapes: Shapes = {}
    for prefix in prefixes:
        shapes |= layers(LLAMA, prefix)
    found = planned(shapes)
    assert list(found.stacks) == names
    assert [stack.prefix for stack in found.stacks.values()] == prefixes
    assert {stack.name for stack in found.stacks.values()} == {place.stack for place in found.placements}


def test_a_layer_that_all_layers_share_is_said_to_be_shared():
    prefix = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
    names = {"ffn.weight": (48, 32), "ffn_output.weight": (32, 48), "full_layer_layer_norm.weight": (32,)}
    found = planned({f"{prefix.format(0)}.{rest}": shape for rest, shape in names.items()})
    assert {place.status for place in found.placements} == {"shared"}
    two = planned({f"{prefix.format(group)}.{rest}": shape for rest, shape in names.items() for group in range(2)})
    assert {(place.layer, place.status) for place in two.placements} == {(0, "ok"), (1, "ok")}


def test_a_second_tensor_for_the_same_projection_is_left_out():
    found = planned(layers(LLAMA | {"attention.wq.weight": (32, 32)}))
    assert len([place for place in found.placements if place.projection == "q"]) == 3
    assert [(skipped.name, skipped.count) for skipped in found.skipped if "another tensor" in skipped.reason] == [
        ("model.layers.#.self_attn.q_proj.weight", 3)
    ]


def test_what_is_left_out_is_listed_by_name_and_reason():
    found = planned(
        layers(LLAMA | {"mlp.gate.weight": (4, 32), "mlp.magic.weight": (32, 32)}) | {"lm_head.weight": (64, 32)}
    )
    reasons = {skipped.name: (skipped.count, skipped.reason) for skipped in found.skipped}
    assert reasons["lm_head.weight"] == (1, "outside the layers")
    assert reasons["model.layers.#.mlp.gate.weight"] == (3, "a router: one output an expert")
    assert reasons["model.layers.#.mlp.magic.weight"] == (3, "no layout knows the name")
    assert reasons["model.layers.#.input_layernorm.weight"] == (3, "a vector")


def test_numbers_beyond_all_layers_and_other_digits_are_no_layer_index():
    names = [f"model.layers.{number}.mlp.up_proj.weight" for number in ("9" * 5000, "²", "٣", "0", "1")]
    found = planned(dict.fromkeys(names, (48, 32)))
    assert [place.layer for place in found.placements] == [0, 1]
    assert {skipped.reason for skipped in found.skipped} == {"outside the layers"}
    with pytest.raises(InputError):
        planned({f"cells.{number}.w": (4, 4) for number in ("9" * 5000, "²", "٣")})


def test_empty_tensors_are_left_out():
    found = planned(layers(LLAMA | {"mlp.up_proj.weight": (0, 32)}))
    assert ("model.layers.#.mlp.up_proj.weight", "empty") in {(left.name, left.reason) for left in found.skipped}


def test_a_placement_says_to_the_events_what_they_ask():
    found = planned(layers(NEOX), {"model_type": "gpt_neox", "num_attention_heads": 4})
    assert one(found, "k", 2).matrix_plan() == MatrixPlan(
        stack="layers",
        projection="k",
        layer=2,
        tensors=("model.layers.2.attention.query_key_value.weight",),
        rows=32,
        cols=32,
        dtype="BF16",
        bytes=333,
        side="v",
        rule="neox",
    )


# ----------------------------------------------------------------------------------------------------- unknown models


def test_unknown_names_are_grouped_by_their_numbers():
    names: Shapes = {"norm.scale": (32,), "mix.inward.weight": (80, 32), "mix.outward.weight": (32, 80)}
    names |= {"mix.turn.weight": (32, 32), "mix.inner.weight": (80, 20)}
    alone: Shapes = {"net.head.weight": (64, 32), "net.tail.0.weight": (64, 32)}
    found = planned(layers(names, "net.cells") | alone)
    assert {(place.projection, place.side) for place in found.placements} == {
        ("mix.inward", "v"), ("mix.outward", "u"), ("mix.turn", "both"), ("mix.inner", "none")
    }  # fmt: skip
    assert found.stacks["net.cells"].width == 32
    assert found.stacks["net.cells"].layers == 3
    assert any("no layout knows" in note for note in found.notes)
    skipped = {(skipped.name, skipped.count, skipped.reason) for skipped in found.skipped}
    assert ("net.head.weight", 1, "no number of a layer in the name") in skipped
    assert ("net.tail.#.weight", 1, "no other layer has a tensor of this name") in skipped


def test_the_leftmost_number_that_varies_is_the_layer():
    shapes = {f"down.{block}.attns.{part}.to_q.w": (16, 16) for block in range(3) for part in range(2)}
    found = planned(shapes)
    assert {(place.stack, place.projection) for place in found.placements} == {
        ("down", "attns.0.to_q.w"), ("down", "attns.1.to_q.w")
    }  # fmt: skip
    twice = planned({f"cells.{number}.w": (16, 16) for number in ("1", "01", "2")})
    assert [place.tensors for place in twice.placements] == [("cells.1.w",), ("cells.2.w",)]
    fixed = planned({f"net.0.cells.{number}.w": (16, 16) for number in range(3)})
    assert {(place.stack, place.projection, place.layer) for place in fixed.placements} == {
        ("net.0.cells", "w", number) for number in range(3)
    }


@pytest.mark.parametrize("shapes", [{}, {"w": (4, 4), "conv.weight": (3, 3, 3, 3)}, {"a.0.w": (4, 4), "b.1.w": (4, 4)}])
def test_where_nothing_groups_the_commonest_names_are_shown(shapes):
    with pytest.raises(InputError, match=f"{len(shapes)} tensor names") as caught:
        planned(shapes)
    assert "--layouts" in caught.value.remedy
    assert all(re.sub(r"\d", "#", name) in caught.value.remedy for name in shapes)


PARTS = st.sampled_from(
    ["model", "layers", "block", "h", "0", "1", "12", "self_attn", "q_proj", "qkv_proj", "query_key_value", "o_proj",
     "mlp", "experts", "gate_up_proj", "down_proj", "weight", "norm", "albert_layer_groups", "albert_layers", "c_attn",
     "wqkv", "ünïcode", "²", "٣", "9999999999", "0000000001", ""]
)  # fmt: skip
NAMES = st.lists(PARTS, min_size=1, max_size=8).map(".".join)
SHAPES = st.lists(st.sampled_from([0, 1, 8, 16, 24, 48]), max_size=4).map(tuple)
CONFIGS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "model_type": st.sampled_from(["gpt_neox", "phi3", "gpt_oss", "internlm2", "codegen", "gpt2"]) | st.none(),
        "num_attention_heads": st.integers(-1, 5) | st.none() | st.text(max_size=2),
        "num_key_value_heads": st.integers(0, 5),
        "hidden_size": st.sampled_from([8, 16, "16", None]),
        "text_config": st.none() | st.just({"model_type": "phi3"}),
    },
)


@given(
    tensors=st.dictionaries(NAMES, st.tuples(SHAPES, st.sampled_from(["", "", "refused"])), max_size=12), config=CONFIGS
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_names_and_shapes_every_weight_is_accounted_for(tensors, config):
    weights = {name: weight(name, shape, refused) for name, (shape, refused) in tensors.items()}
    try:
        found = plan(weights, config, LAYOUTS)
    except InputError:
        return
    used = {tensor for place in found.placements for tensor in place.tensors}
    assert len(used) + sum(skipped.count for skipped in found.skipped) == len(weights)
    assert len({(place.stack, place.projection, place.layer) for place in found.placements}) == len(found.placements)
    for place in found.placements:
        assert place.stack in found.stacks
        if place.status == "ok":
            stored = {tensor: torch.zeros(weights[tensor].shape) for tensor in place.tensors}
            matrices = list(place.matrices(stored.__getitem__))
            assert {tuple(matrix.shape) for matrix in matrices} <= {(place.rows, place.cols)}
            assert len(matrices) == (place.experts or 1)
