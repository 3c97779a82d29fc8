"""Experiment files: what is read from them, and what is refused with the path of the key."""

import string
from pathlib import Path

import msgspec
import pytest
import tomli_w
from geocont.ablations import experiment as experiments
from geocont.ablations.experiment import (
    SGD,
    Adam,
    Data,
    Experiment,
    He,
    Normal,
    Orthogonal,
    Probes,
    UniformFanIn,
    Variant,
    presets,
    read,
    resolve,
    with_steps,
)
from geocont.errors import InputError
from geocont.runs import create_run_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SMALL = """
name = "small"
[defaults]
width = 32
optimizer = { algorithm = "adam", learning_rate = 1e-3, betas = [0.5, 0.9] }
[[variants]]
name = "Res+None"
activation = "none"
[[variants]]
name = "std 0.02"
width = 64
optimizer = { algorithm = "sgd", momentum = 0.9 }
"""


def small(tmp_path: Path, text: str = SMALL) -> str:
    path = tmp_path / "small.toml"
    path.write_text(text, "utf-8")
    return str(path)


def refusal(name_or_file: str, *overrides: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read(name_or_file, overrides)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    return caught.value


def test_defaults_are_merged_into_every_variant(tmp_path):
    experiment = read(small(tmp_path))
    first, second = experiment.variants
    assert (first.width, first.depth, first.activation) == (32, 16, "none")
    assert (second.width, second.activation) == (64, "gelu")
    assert first.optimizer == Adam(learning_rate=1e-3, betas=(0.5, 0.9))
    assert second.optimizer == SGD(momentum=0.9)
    assert (experiment.seeds, experiment.data, experiment.probes) == (3, Data(), Probes())


def test_a_table_without_its_kind_changes_keys_of_the_default_one(tmp_path):
    text = SMALL.replace('algorithm = "sgd", momentum = 0.9', "learning_rate = 0.5")
    assert read(small(tmp_path, text)).variants[1].optimizer == Adam(learning_rate=0.5, betas=(0.5, 0.9))


def test_a_wrong_key_is_named_where_it_is_written(tmp_path):
    text = SMALL.replace('activation = "none"', "optimizer = { epsilon = 0.1 }")
    text = text.replace('algorithm = "sgd", momentum = 0.9', "learning_rate = 0.5")
    error = refusal(small(tmp_path, text), "defaults.optimizer.betas=[2,0]")
    assert ": defaults.optimizer.betas[0]: expected" in str(error)
    error = refusal(small(tmp_path, text), "variants.std 0.02.optimizer.learning_rate=0")
    assert ": variants[1].optimizer.learning_rate: expected" in str(error)


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid(name):
    experiment = read(name)
    assert experiment.name == name
    assert experiment.description
    assert read(str(experiments.presets_folder() / f"{name}.toml")) == experiment


def test_the_presets_hold_what_they_are_for():
    default, full = read("mlp"), read("mlp_full")
    names = ["Res+GELU", "Res+ReLU", "Res+None", "Res+Radial", "Res+Radial scaled", "NoRes+GELU", "Res+LN"]
    assert [variant.name for variant in default.variants] == [*names, "Res+GELU+LN"]
    assert {(variant.depth, variant.width) for variant in (*default.variants, *full.variants)} == {(16, 256)}
    assert (Variant(name="a").depth, Variant(name="a").width) == (16, 256)
    kinds = {v.name: (v.residual, v.activation, v.normalization) for v in (*default.variants, *full.variants)}
    assert kinds == {
        "Res+GELU": (True, "gelu", "none"),
        "Res+ReLU": (True, "relu", "none"),
        "Res+None": (True, "none", "none"),
        "Res+Radial": (True, "radial", "none"),
        "Res+Radial scaled": (True, "radial_scaled", "none"),
        "NoRes+GELU": (False, "gelu", "none"),
        "Res+LN": (True, "none", "layernorm"),
        "Res+GELU+LN": (True, "gelu", "layernorm"),
        "Res+Tanh": (True, "tanh", "none"),
        "NoRes+ReLU He": (False, "relu", "none"),
    }
    longer = {variant.name: variant for variant in full.variants}
    assert longer.keys() == kinds.keys()
    assert isinstance(longer["NoRes+ReLU He"].initialization, He)
    assert full.data.images is None
    assert full.seeds >= 5
    for name in ("Res+None", "Res+Radial", "Res+Radial scaled"):
        assert longer[name].steps == 20 * (60_000 // longer[name].batch_size) + 20
    optimizers = {(type(o), getattr(o, "betas", None), getattr(o, "momentum", 0.0) > 0, o.gradient_clip > 0)
                  for o in (variant.optimizer for variant in read("optimizers").variants)}  # fmt: skip
    assert {(Adam, (0.9, 0.999), False, False), (Adam, (0.0, 0.0), False, False), (SGD, None, True, True)} <= optimizers
    assert any(kind is SGD and not momentum for kind, _, momentum, _ in optimizers)
    assert len({type(variant.initialization) for variant in read("init_scale").variants}) >= 3
    assert {variant.normalization for variant in read("normalization").variants} == {"none", "layernorm", "rmsnorm"}


def test_a_file_with_a_byte_order_mark(tmp_path):
    assert read(small(tmp_path, "\ufeff" + SMALL)).name == "small"


def test_overrides(tmp_path):
    experiment = read(
        small(tmp_path),
        (
            "seeds=5",
            "data.images=500",
            "name=another one",
            "defaults.depth=4",
            "variants.Res+None.steps=20",
            "variants.Res+None.optimizer.learning_rate=0.25",
            "variants.std 0.02.optimizer.momentum = 0.5",
            "variants.std 0.02.initialization.scheme=he",
            'description="a = b"',
        ),
    )
    first, second = experiment.variants
    assert (experiment.seeds, experiment.data.images, experiment.name) == (5, 500, "another one")
    assert experiment.description == "a = b"
    assert (first.depth, second.depth, first.steps) == (4, 4, 20)
    assert first.optimizer == Adam(learning_rate=0.25, betas=(0.5, 0.9))
    assert (second.optimizer, second.initialization) == (SGD(momentum=0.5), He())


def test_an_override_wins_over_the_default_for_those_without_their_own(tmp_path):
    assert [variant.width for variant in read(small(tmp_path), ("defaults.width=16",)).variants] == [16, 64]


def test_the_longest_variant_name_wins(tmp_path):
    text = SMALL + '[[variants]]\nname = "std 0.02.steps"\n'
    experiment = read(small(tmp_path, text), ("variants.std 0.02.steps.depth=7", "variants.std 0.02.depth=9"))
    assert [variant.depth for variant in experiment.variants] == [16, 9, 7]


def test_data_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read("mlp", ("data.path=images",)).data.path == str(Path.cwd() / "images")
    monkeypatch.setenv("HOME", "/home/her")
    assert read("mlp", ("data.path=~/images",)).data.path == "/home/her/images"


@pytest.mark.parametrize(
    ("override", "problem", "remedy"),
    [
        ("seeds", "expected key.path=value", "seeds=5"),
        ("=3", "expected key.path=value", "seeds=5"),
        ("a..b=3", "expected key.path=value", "seeds=5"),
        ("seeds=0", "seeds: expected int >= 1, got 0", "correct"),
        ("seeds=2000000", "seeds: expected int <= 10000, got 2000000", "correct"),
        ("defaults.width=9007199254740992", "defaults.width: expected int <= 1048576", "correct"),
        ("seed=9007199254740000", "seed: expected int <= 1099511627776, got 9007199254740000", "correct"),
        ("seeds=", "seeds: expected int, got str", "correct"),
        ("seeds=5\nseed=3", "not printable", "UTF-8"),
        ("name=\udcff", "not printable", "UTF-8"),
        ("sedes=3", "sedes: unknown key", "did you mean seeds?"),
        ("name.x=3", "name is a value", "shorten"),
        ("variants=3", "variants: expected array, got int", "correct"),
        ("variants.Res+None=3", "name the variant and a key", "variants.NAME.steps"),
        ("variants.std 0.02=3", "name the variant and a key", "variants.NAME.steps"),
        ("variants.Res.steps=3", "there is no variant 'Res'", "the variants are Res+None, std 0.02"),
        ("variants.Res+None.width=0", "variants[0].width: expected int >= 2, got 0", "correct"),
        ("defaults.width=0", "defaults.width: expected int >= 2, got 0", "correct"),
        ("defaults.wdith=3", "defaults.wdith: unknown key", "did you mean width?"),
        ("defaults=3", "defaults: expected a table", "[defaults]"),
        ("defaults.name=x", "without effect, every variant has its own name", "variants.NAME.name"),
        ("data.images=0", "data.images: expected int >= 1, got 0", "correct"),
        ("data.path=", "data.path: expected str of length >= 1, got ''", "correct"),
        ("probes.growth=1", "probes.growth: expected float > 1.0, got 1", "correct"),
        ("probes.leading=40", "probes.leading: 40 is more than defaults.width allows: the width is 32", "lower"),
        ("seeds=" + "9" * 5000, "--set seeds: an integer of 5000 digits", "smaller"),
        (".".join(["defaults"] * 3000) + "=1", "a key is nested too deeply", "--set"),
        ("defaults.activation=gelo", "defaults.activation: unknown value 'gelo'", "did you mean gelu?"),
        ("defaults.activation=qqqq", "unknown value 'qqqq'", "none, relu, gelu"),
        ("variants.Res+None.optimizer.algorithm=adamw", "variants[0].optimizer.algorithm: unknown", "adam, sgd"),
        ("variants.std 0.02.optimizer.betas=[0,0]", "variants[1].optimizer.betas: unknown key", "remove it"),
        ("defaults.optimizer.betas=[0,1]", "defaults.optimizer.betas[1]: expected float < 1.0, got 1", "correct"),
        ("variants.Res+None.optimizer.epsilon=-1", "variants[0].optimizer.epsilon: expected float >= 0", "correct"),
        ("defaults.optimizer.learning_rate=inf", "defaults.optimizer.learning_rate: inf is not a finite", "number"),
        ("defaults.optimizer.learning_rate=nan", "defaults.optimizer.learning_rate: nan is not a finite", "number"),
        ("seed=99999999999999999999", "seed: the number is too large", "smaller"),
        ("defaults.initialization.std=1", "defaults.initialization.scheme: this key is required", "add it"),
        ('name="a\\u001b[1m"', "has control characters", "printable"),
        ('variants.Res+None.name=" x"', "variants[0].name: ' x' has", "printable"),
        ("variants.Res+None.name=std 0.02", "the name 'std 0.02' is used twice", "own name"),
    ],
)
def test_overrides_that_are_refused(tmp_path, override, problem, remedy):
    error = refusal(small(tmp_path), override)
    assert problem in str(error)
    assert remedy in error.remedy


def test_a_fault_is_looked_for_where_it_is(tmp_path):
    assert str(refusal(small(tmp_path), "defaults.width=0")).startswith("--set: defaults.width: ")
    broken = small(tmp_path, SMALL.replace("width = 64", "width = -64"))
    assert str(refusal(broken, "seeds=5")).startswith(f"{broken}: variants[1].width: ")
    # What an override has mended is not the fault.
    assert str(refusal(broken, "variants.std 0.02.width=64", "seeds=0")).startswith("--set: seeds: ")


def test_an_override_without_effect_is_refused(tmp_path):
    text = SMALL.replace('activation = "none"', 'activation = "none"\nwidth = 16')
    error = refusal(small(tmp_path, text), "defaults.width=64")
    assert "without effect, every variant has its own width" in str(error)
    assert "variants.NAME.width" in error.remedy
    text = text.replace('activation = "none"', 'optimizer = { algorithm = "adam" }')
    assert "its own optimizer" in str(refusal(small(tmp_path, text), "defaults.optimizer.learning_rate=1"))
    text = text.replace('optimizer = { algorithm = "adam" }', "optimizer = { epsilon = 1e-5 }")
    changed = read(small(tmp_path, text), ("defaults.optimizer.learning_rate=1",)).variants[0].optimizer
    assert changed == Adam(learning_rate=1.0, betas=(0.5, 0.9), epsilon=1e-5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seeds = x", "not valid TOML: Invalid value (at line 1, column 9)"),
        ("\nseeds = ", "not valid TOML: Invalid value (at line 2, column 9, the end of the file)"),
        ('name = "x"\n[defaults]\nname = "a"\n[[variants]]\nname = "a"', "defaults: expected a table without `name`"),
        ("a = " + "[" * 10_000, "nested too deeply"),
        (".".join("a" * 2000) + " = 1", "nested too deeply"),
        ("seeds = " + "9" * 5000, "an integer of thousands of digits"),
        ("", "variants: there is none"),
        ('name = "x"\nvariants = []', "variants: there is none"),
        ('[[variants]]\nname = "a"', "name: this key is required"),
        ('name = "x"\n[[variants]]\nwidth = 64', "variants[0].name: this key is required"),
        ('name = "x"\nvariants = [3]', "variants[0]: expected table, got int"),
        ('name = ""\n[[variants]]\nname = "a"', "name: expected str of length >= 1, got ''"),
        ('name = "x"\n[[variants]]\nname = "a"\nresidual = 1', "variants[0].residual: expected bool, got int"),
        ('name = "x"\n[[variants]]\nname = "a"\nwidth = true', "variants[0].width: expected int, got bool"),
        ('name = "x"\n[[variants]]\nname = "a"\noptimizer = {}', "variants[0].optimizer.algorithm: this key"),
        ('name = "x"\n[[variants]]\nname = "a"\n"wi\\nd" = 3', r"'variants[0].wi\nd': unknown key"),
    ],
)
def test_files_that_are_refused(tmp_path, text, problem):
    error = refusal(small(tmp_path, text))
    assert problem in str(error)
    assert str(error).startswith(str(tmp_path / "small.toml"))


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, problem in (
        (str(tmp_path), "is a folder"),
        (str(tmp_path / "absent.toml"), "there is no file"),
        ("./absent", "there is no file"),
        ("absent.toml", "there is no file"),
        (str(tmp_path / "binary"), "is not a text file (byte 0"),
        ("x" * 300, "File name too long"),
        ("zzz", "there is no preset 'zzz'"),
    ):
        assert problem in str(refusal(name))
    assert "did you mean mlp?" in refusal("mpl").remedy


def test_with_steps():
    assert {variant.steps for variant in with_steps(read("mlp"), 7).variants} == {7}
    with pytest.raises(InputError, match="at least 1, got 0"):
        with_steps(read("mlp"), 0)


positive = st.floats(1e-300, 1e300)
initializations = st.one_of(
    st.builds(Normal, std=positive), st.just(UniformFanIn()), st.builds(Orthogonal, gain=positive), st.just(He())
)
betas = st.floats(0, 1, exclude_max=True)
optimizers = st.one_of(
    st.builds(Adam, learning_rate=positive, betas=st.tuples(betas, betas), epsilon=st.floats(0, 1)),
    st.builds(SGD, learning_rate=positive, momentum=betas, weight_decay=st.floats(0, 10)),
)
printable = st.characters(exclude_categories=("C", "Z"))
variants = st.builds(
    Variant,
    name=st.text(printable, min_size=1, max_size=40),
    residual=st.booleans(),
    width=st.integers(10, 2**20),
    initialization=initializations,
    optimizer=optimizers,
)
descriptions = st.text(st.characters(exclude_categories=("Cs",)))
wholes = st.builds(
    Experiment,
    name=st.text(printable, min_size=1, max_size=60),
    description=descriptions,
    seed=st.integers(0, 2**40),
    data=st.builds(
        Data,
        path=st.none() | st.text(printable, min_size=1).map(lambda text: str(Path("/" + text))),
        images=st.none() | st.just(9),
    ),
    variants=st.lists(variants, min_size=1, max_size=3, unique_by=lambda variant: variant.name).map(tuple),
)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(experiment=wholes)
def test_a_resolved_experiment_reads_back_equal(tmp_path, experiment):
    folder = create_run_folder(experiment, tmp_path)
    assert read(str(folder / "experiment.toml")) == experiment


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates()
keys = st.sampled_from(
    [
        "name",
        "seeds",
        "variants",
        "defaults",
        "data",
        "probes",
        "optimizer",
        "algorithm",
        "scheme",
        "width",
        "betas",
        "x",
    ]
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))
settings_of_a_variant = st.dictionaries(keys, values, max_size=4)
tables = st.one_of(
    st.dictionaries(keys, values, max_size=6),
    st.fixed_dictionaries(
        {"name": st.just("x"), "variants": st.lists(settings_of_a_variant, max_size=2)},
        optional={"defaults": settings_of_a_variant, "data": settings_of_a_variant},
    ),
)


@settings(deadline=None, max_examples=150)
@given(table=tables)
def test_any_table_gives_an_experiment_or_an_input_error(table):
    try:
        assert isinstance(resolve(table, source="file"), Experiment)
    except InputError as error:
        message = str(error)
        assert message.startswith("file: ")


override_texts = st.text(string.ascii_letters + ".=[]{}\"'+ 0123", max_size=30)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    override=st.one_of(
        override_texts,
        st.builds("{}.{}={}".format, st.sampled_from(["variants.Res+None", "defaults", "data"]), keys, override_texts),
    )
)
def test_any_override_gives_an_experiment_or_an_input_error(tmp_path, override):
    try:
        read(small(tmp_path), (override,))
    except InputError as error:
        message = str(error)
        assert message


def test_resolving_changes_nothing_in_its_argument():
    table = {"name": "x", "defaults": {"width": 64}, "variants": [{"name": "a"}]}
    before = tomli_w.dumps(table)
    resolve(table, source="file")
    assert tomli_w.dumps(table) == before


def test_structs_are_frozen():
    with pytest.raises(AttributeError):
        read("mlp").seeds = 4
    assert msgspec.to_builtins(read("mlp"))["variants"][0]["optimizer"]["algorithm"] == "adam"


def test_a_budget_of_tokens_says_how_many_steps_and_no_other_number_is_taken(tmp_path):
    budget = ("data.path=x", "defaults.tokens=40960", "defaults.batch_size=8", "defaults.sequence_length=128")
    path = tmp_path / "text.toml"
    path.write_text("""
kind = "language_model"
name = "text"
probes = { leading = 4 }
[[variants]]
name = "A"
""")
    experiment = read(str(path), budget)
    assert [variant.steps for variant in experiment.variants] == [40]
    # A run keeps every value, steps and tokens among them.
    assert resolve(msgspec.to_builtins(experiment), source="") == experiment
    with pytest.raises(InputError, match=r"defaults\.steps: 100 steps contradict the budget of 40960 tokens") as caught:
        read(str(path), (*budget, "defaults.steps=100"))
    assert "--steps 100" in caught.value.remedy
    assert [variant.steps for variant in with_steps(experiment, 100).variants] == [100]


@pytest.mark.parametrize(
    ("assignments", "problem", "remedy"),
    [
        (
            ("heads=8", "key_value_heads=1", "width=32"),
            "probes.leading: 10 is more than defaults.key_value_heads allows: the rows of K and V are 4",
            "raise key_value_heads",
        ),
        (("width=8", "heads=2", "key_value_heads=2"), "defaults.width allows: the width is 8", "raise width"),
        (("mlp_width=6",), "defaults.mlp_width allows: it is 6", "raise mlp_width"),
        (("heads=5", "width=32"), "defaults.heads: 5 heads do not divide a width of 32", "rotary"),
        (("heads=4", "key_value_heads=8"), "defaults.key_value_heads: 8 does not divide 4 heads", "divisor"),
        (("initialization.scheme=he",), "unknown value 'he'", "the values are normal"),
        (("optimizer.algorithm=sgd",), "unknown value 'sgd'", "the values are adam"),
    ],
)
def test_language_models_that_are_impossible(assignments, problem, remedy):
    overrides = (f"defaults.{assignment}" for assignment in assignments)
    error = refusal("transformer_small", "probes.leading=10", *overrides)
    assert problem in str(error)
    assert remedy in error.remedy
