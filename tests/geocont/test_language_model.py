"""The decoder against transformers' own, and what its replaceable parts do."""

import json

import msgspec
import pytest
import torch
from geocont.ablations import language_model, products
from geocont.ablations.experiment import LanguageAdam, LanguageVariant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

VOCABULARY = 300


def small(**changes) -> LanguageVariant:
    chosen = {"depth": 3, "width": 32, "heads": 4, "key_value_heads": 2, "mlp_width": 48, "sequence_length": 12}
    return LanguageVariant(name="a", **chosen | changes)


def parameters_of(variant: LanguageVariant, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = language_model.initial_parameters(variant, VOCABULARY, generator)
    # Not only ones: a gain that is left out would not be seen.
    return {
        name: value + 0.1 * torch.randn(value.shape, generator=generator) if "norm" in name else 8 * value
        for name, value in drawn.items()
    }


def decoder(variant: LanguageVariant, precision: torch.dtype = torch.float32) -> language_model.Decoder:
    rotary = language_model.Rotary.make(variant.sequence_length, variant.width // variant.heads, torch.device("cpu"))
    return language_model.Decoder(variant, rotary, precision)


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu", "tanh", "none"])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_a_saved_network_and_computes_the_same(activation, tied, tmp_path):
    transformers = pytest.importorskip("transformers")
    variant = small(activation=activation, tied_embeddings=tied)
    values = parameters_of(variant)
    language_model.save(tmp_path, variant, values, b"{}")
    (tmp_path / "tokenizer.json").unlink()
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    expected = model(input_ids=tokens()).logits.flatten(0, 1)
    assert expected.std() > 0.1
    found = decoder(variant).forward(values, tokens())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"tied_embeddings": True}, {"key_value_heads": 4}])
def test_the_count_of_operations_is_that_of_transformers_products(changes, tmp_path):
    transformers = pytest.importorskip("transformers")
    variant = small(batch_size=2, **changes)
    language_model.save(tmp_path, variant, parameters_of(variant), None)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens())
    # Of attention's two products a layer eager attention also computes the half that the mask hides.
    hidden = 2 * variant.depth * 2 * 12 * 12 * variant.width
    assert counter.get_total_flops() - hidden == language_model.operations(variant, VOCABULARY) / 3


@pytest.mark.parametrize(
    "changes",
    [
        {"gate": False},
        {"residual": False},
        {"normalization": "none"},
        {"normalization": "layernorm"},
        {"activation": "radial"},
        {"activation": "radial_scaled"},
        {"tied_embeddings": True, "key_value_heads": 4},
    ],
)
def test_every_part_that_can_be_replaced_changes_what_is_computed_and_is_saved(changes, tmp_path):
    whole, variant = small(), small(**changes)
    values = parameters_of(whole)
    mine = {name: value for name, value in values.items() if name in language_model.shapes(variant, VOCABULARY)}
    mine |= {name: value for name, value in parameters_of(variant).items() if name in ("k", "v")}
    assert not torch.allclose(decoder(whole).forward(values, tokens()), decoder(variant).forward(mine, tokens()))
    language_model.save(tmp_path, variant, mine, None)
    config = json.loads((tmp_path / "config.json").read_bytes())
    assert config["geocont"]["residual"] is variant.residual
    is_known = config["architectures"] == ["LlamaForCausalLM"]
    assert is_known == ("tied_embeddings" in changes)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), gate=st.booleans(), residual=st.booleans(), accumulation=st.sampled_from([1, 2]))
def test_gradients_are_those_of_autograd_in_parts_as_in_one(seed, gate, residual, accumulation):
    variant = small(gate=gate, residual=residual, activation="gelu")
    values = {name: value.double() for name, value in parameters_of(variant, seed).items()}
    exact = decoder(variant, torch.float64)
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    batch = torch.randint(VOCABULARY, (4, 13), generator=torch.Generator().manual_seed(seed))
    exact.losses(leaves, batch).backward()

    names = language_model.projection_shapes(variant)
    gradients = {
        name: products.WeightGradients(torch.zeros_like(values[name])[:, None], torch.zeros_like(values[name])[:, None])
        for name in names
    }
    mine = values | {name: value.clone().requires_grad_() for name, value in values.items() if name not in names}
    for place, part in enumerate(batch.chunk(accumulation)):
        for taken in gradients.values():
            if place:
                taken.go_on()
            else:
                taken.begin(is_measured=True)
        (exact.losses(mine, part, gradients) / accumulation).backward()
    for name, leaf in leaves.items():
        found = gradients[name].values[:, 0] if name in names else mine[name].grad
        torch.testing.assert_close(found, leaf.grad, msg=lambda text, name=name: f"{name}: {text}")


@settings(max_examples=20, deadline=None)
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=8),
    precision=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_gradients_add_up_over_steps_and_parts(steps, precision):
    generator = torch.Generator().manual_seed(0)
    taken = products.WeightGradients(torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4))
    total = torch.zeros(2, 1, 3, 4)
    for is_measured, parts in steps:
        taken.begin(is_measured)
        if is_measured:
            torch.testing.assert_close(taken.totals, total)
        upstream = torch.randn((parts, 2, 1, 5, 3), generator=generator).to(precision)
        inputs = torch.randn((parts, 2, 1, 5, 4), generator=generator).to(precision)
        drawn = (upstream.mT @ inputs).float()
        for place in range(parts):
            if place:
                taken.go_on()
            for layer in range(2):
                taken.take(layer, upstream[place, layer], inputs[place, layer])
        torch.testing.assert_close(taken.values, drawn.sum(0))
        total = total + drawn.sum(0)
    taken.settle()
    torch.testing.assert_close(taken.totals, total)


def test_variants_of_a_seed_share_their_numbers():
    whole, bare = small(), small(gate=False, tied_embeddings=True, normalization="none")
    drawn = [
        language_model.initial_parameters(variant, VOCABULARY, torch.Generator().manual_seed(1))
        for variant in (whole, bare)
    ]
    assert set(drawn[0]) - set(drawn[1]) == {"gate", "head", "attention_norm", "mlp_norm", "norm"}
    for name, value in drawn[1].items():
        assert torch.equal(value, drawn[0][name]), name


def test_the_learning_rate_rises_and_falls_along_a_cosine():
    variant = small(steps=100, warmup=10, final_learning_rate=0.1, optimizer=LanguageAdam(learning_rate=1.0))
    rates = [language_model.learning_rate(variant, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == rates[9] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)
    flat = msgspec.structs.replace(variant, warmup=0, final_learning_rate=1.0)
    assert {language_model.learning_rate(flat, step) for step in range(100)} == {1.0}


def test_bf16_is_near_float32():
    variant = small()
    values = parameters_of(variant)
    exact = decoder(variant).forward(values, tokens())
    rough = decoder(variant, torch.bfloat16).forward(values, tokens())
    assert rough.dtype == torch.float32
    assert 0 < (rough - exact).abs().mean() < 0.1 * exact.std()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("SiLU", "SiLU-3"), ("a/../b", "a_.._b-3"), ("..", "_-3"), ("Res+None (x)", "Res+None__x_-3")],
)
def test_folder_names_stay_in_their_folder(name, expected):
    assert language_model.folder_name(name, 3) == expected
