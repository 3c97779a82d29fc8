"""What an experiment file says: the variants to train, on which data, how, and what to measure.

Two kinds of networks can be trained: residual MLPs on images (`Experiment`) and Llama-style transformers on text
(`LanguageExperiment`); `kind` tells which, and a file that does not say it is of the first.

A file is TOML. `[defaults]` holds what all variants share, each `[[variants]]` table overrides it; a variant's
optimizer or initialization that names no algorithm or scheme changes keys of the default one. Unknown keys, wrong types
and impossible values are refused with the path of the key. `read` resolves a preset's name or a file, applies
`--set key.path=value` overrides and returns an `Experiment` in which every value is explicit.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from geocont.errors import InputError
from geocont.toml_file import is_deep, read_toml

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Beta = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]
Activation = Literal["none", "relu", "gelu", "silu", "tanh", "leaky_relu", "elu", "radial", "radial_scaled"]
LanguageActivation = Literal["silu", "gelu", "relu", "tanh", "none", "radial", "radial_scaled"]
Normalization = Literal["none", "layernorm", "rmsnorm"]
Precision = Literal["float32", "bf16"]

ELEMENTWISE_ACTIVATIONS: frozenset[str] = frozenset({"relu", "gelu", "silu", "tanh", "leaky_relu", "elu"})
RADIAL_ACTIVATIONS: frozenset[str] = frozenset({"radial", "radial_scaled"})


class _Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Normal(_Config, frozen=True, kw_only=True, tag_field="scheme", tag="normal"):
    """W ~ N(0, std²)."""

    std: Positive = 0.02


class UniformFanIn(_Config, frozen=True, kw_only=True, tag_field="scheme", tag="uniform_fan_in"):
    """W ~ U(−1/√fan_in, 1/√fan_in), the default of torch.nn.Linear."""


class Orthogonal(_Config, frozen=True, kw_only=True, tag_field="scheme", tag="orthogonal"):
    """W = gain × a random orthogonal matrix."""

    gain: Positive = 1.0


class He(_Config, frozen=True, kw_only=True, tag_field="scheme", tag="he"):
    """W ~ N(0, 2/fan_in) (He et al. 2015)."""


Initialization = Normal | UniformFanIn | Orthogonal | He


class Adam(_Config, frozen=True, kw_only=True, tag_field="algorithm", tag="adam"):
    """Adam; with `weight_decay` AdamW (decoupled). betas = [0, 0] is sign descent."""

    learning_rate: Positive = 1e-3
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    epsilon: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0
    gradient_clip: NonNegative = 0.0


class LanguageAdam(Adam, frozen=True, kw_only=True, tag_field="algorithm", tag="adam"):
    """AdamW with the values that are usual for language models."""

    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: NonNegative = 0.1
    gradient_clip: NonNegative = 1.0


class SGD(_Config, frozen=True, kw_only=True, tag_field="algorithm", tag="sgd"):
    """Gradient descent, with momentum if that is above 0.

    `gradient_clip` bounds the norm of the whole gradient, here and in Adam; 0: not at all.
    """

    learning_rate: Positive = 1e-2
    momentum: Beta = 0.0
    weight_decay: NonNegative = 0.0
    gradient_clip: NonNegative = 0.0


Optimizer = Adam | SGD


class AnyVariant(_Config, frozen=True, kw_only=True):
    """What every kind of network has; `multiplications` is about what a forward pass of one step takes."""

    name: Annotated[str, Meta(min_length=1, max_length=40)]
    residual: bool = True
    normalization: Normalization = "none"
    depth: Annotated[int, Meta(ge=2, le=2**16)] = 16
    width: Annotated[int, Meta(ge=2, le=2**20)] = 256
    steps: Count = 1000
    batch_size: Count = 128

    @property
    def multiplications(self) -> int:
        raise NotImplementedError


class Variant(AnyVariant, frozen=True, kw_only=True):
    """One residual MLP: input → width (bias), depth × h ← h + activation(W norm(h) [+ b]), width → classes (bias)."""

    activation: Activation = "gelu"
    bias: bool = False
    initialization: Initialization = msgspec.field(default_factory=Normal)
    optimizer: Optimizer = msgspec.field(default_factory=Adam)

    @property
    def multiplications(self) -> int:
        return self.batch_size * self.depth * self.width**2


class LanguageVariant(AnyVariant, frozen=True, kw_only=True):
    """One decoder as transformers' LlamaForCausalLM computes it, with parts that can be replaced.

    `gate`: down(activation(gate x) * up x), without it down(activation(up x)). `activation = "none"` is the identity.
    A step sees batch_size sequences of `sequence_length` tokens, in `accumulation` parts. The learning rate rises over
    `warmup` steps and then falls along a cosine to `final_learning_rate` times its peak. `tokens`, if given, is the
    budget that `steps` follow from.
    """

    activation: LanguageActivation = "silu"
    gate: bool = True
    normalization: Normalization = "rmsnorm"
    tied_embeddings: bool = False
    depth: Annotated[int, Meta(ge=2, le=2**12)] = 8
    width: Annotated[int, Meta(ge=4, le=2**16)] = 128
    heads: Count = 4
    key_value_heads: Count = 4
    mlp_width: Annotated[int, Meta(ge=2, le=2**18)] = 352
    initialization: Normal = msgspec.field(default_factory=Normal)
    optimizer: LanguageAdam = msgspec.field(default_factory=LanguageAdam)
    steps: Count = 500
    tokens: Count | None = None
    batch_size: Count = 16
    sequence_length: Annotated[int, Meta(ge=2)] = 128
    accumulation: Count = 1
    warmup: Annotated[int, Meta(ge=0)] = 50
    final_learning_rate: Annotated[float, Meta(ge=0, le=1)] = 0.1

    @property
    def multiplications(self) -> int:
        # Without attention's own and the head's.
        kept = (self.heads + self.key_value_heads) / self.heads
        layer = self.width**2 * 2 * kept + self.width * self.mlp_width * (3 if self.gate else 2)
        return int(self.batch_size * self.sequence_length * self.depth * layer)


class Data(_Config, frozen=True, kw_only=True):
    """Images to train on: the shipped MNIST, or a folder of IDX files. `images` limits the training set."""

    path: Annotated[str, Meta(min_length=1)] | None = None
    images: Count | None = None


class Text(_Config, frozen=True, kw_only=True):
    """Text to train on: a data set of the hub, or `path`, a text or parquet file or a folder of them.

    `vocabulary` is the size of the byte-level BPE that is trained on it; `held_out` the part at the end of `path` that
    is not trained on but evaluated (a data set of the hub has its own: the split "validation").
    """

    dataset: Annotated[str, Meta(min_length=1)] = "Salesforce/wikitext"
    configuration: Annotated[str, Meta(min_length=1)] = "wikitext-103-raw-v1"
    path: Annotated[str, Meta(min_length=1)] | None = None
    vocabulary: Annotated[int, Meta(ge=257, le=2**20)] = 8192
    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.05


class Probes(_Config, frozen=True, kw_only=True):
    """When to measure: every step up to `dense`, then at intervals growing by `growth`, at most `interval` steps apart.

    `exact` snapshots (full singular value decompositions) are spread over the training; between them leading vectors
    are followed by warm-started iteration. `leading` is the dimension of the subspaces whose overlap is measured;
    `gap_tolerance` the relative gap (σ1 − σ2)/σ1 under which v1 counts as not unique.
    """

    dense: Annotated[int, Meta(ge=0)] = 1
    growth: Annotated[float, Meta(gt=1)] = 3.0
    interval: Count = 500
    exact: Annotated[int, Meta(ge=2)] = 2
    leading: Annotated[int, Meta(ge=1)] = 10
    gap_tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.005


class _Experiment(_Config, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=60)]
    description: str = ""
    # All networks are planned before the first one is trained, which should not take long.
    seeds: Annotated[int, Meta(ge=1, le=10_000)] = 3
    # Every seed has 2**20 streams of random numbers (see training), and a generator's seed 64 bits.
    seed: Annotated[int, Meta(ge=0, le=2**40)] = 0
    probes: Probes = msgspec.field(default_factory=Probes)


class Experiment(_Experiment, frozen=True, kw_only=True, tag_field="kind", tag="residual_mlp"):
    """Residual MLPs on images: a set of variants, each trained from the seeds seed, seed + 1, …, seed + seeds − 1."""

    data: Data = msgspec.field(default_factory=Data)
    variants: Annotated[tuple[Variant, ...], Meta(min_length=1)]

    @property
    def networks(self) -> tuple[tuple[Variant, int], ...]:
        """Every network of the experiment: its variant and its seed."""
        seeds = range(self.seed, self.seed + self.seeds)
        return tuple((variant, seed) for seed in seeds for variant in self.variants)


class LanguageExperiment(_Experiment, frozen=True, kw_only=True, tag_field="kind", tag="language_model"):
    """Transformers on text: variants and seeds as in `Experiment`.

    `precision` is that of the products while training (bf16: autocast); weights and probes are float32 either way.
    """

    data: Text = msgspec.field(default_factory=Text)
    precision: Precision = "float32"
    variants: Annotated[tuple[LanguageVariant, ...], Meta(min_length=1)]

    @property
    def networks(self) -> tuple[tuple[LanguageVariant, int], ...]:
        """Every network of the experiment: its variant and its seed."""
        seeds = range(self.seed, self.seed + self.seeds)
        return tuple((variant, seed) for seed in seeds for variant in self.variants)


AnyExperiment = Experiment | LanguageExperiment


def plain(table: Mapping[str, Any]) -> AnyExperiment:
    """The experiment that a journal holds as plain data.

    Raises:
        InputError: it is none, or of another version of this program.
    """
    try:
        if table.get("kind") == LanguageExperiment.__struct_config__.tag:
            return msgspec.convert(table, LanguageExperiment)
        return msgspec.convert(table, Experiment)
    except msgspec.ValidationError as error:
        raise InputError(
            f"the experiment of the run cannot be read: {error}", "use the version of geocont-tui that began it"
        ) from None


def presets_folder() -> Path:
    """Where the shipped experiments lie: inside the installed package, or `sample_configs` of a checkout."""
    packaged = Path(__file__).parent / "presets"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "sample_configs"


def presets() -> list[str]:
    """Names of the shipped experiments, sorted."""
    return sorted(path.stem for path in presets_folder().glob("*.toml"))


def read(name_or_file: str, overrides: tuple[str, ...] = ()) -> AnyExperiment:
    """Read a preset or an experiment file and apply `key.path=value` overrides.

    Args:
        name_or_file: a preset's name (`mlp`) or a path to a TOML file.
        overrides: assignments such as `seeds=5`, `defaults.width=128`, `variants.Res+None.steps=200`, `data.path=/x`.
            Values are TOML; what does not parse as TOML is taken as a string. A relative data.path is taken from the
            working directory, and is absolute in what is returned.

    Raises:
        InputError: no such preset or file, not TOML (with line and column), an unknown key, a wrong type, an impossible
            value (with the path of the key), an override without effect.
    """
    path = _find(name_or_file)
    table = read_toml(path)
    for override in overrides:
        _assign(table, override)
    if is_deep(table):
        raise InputError("--set: a key is nested too deeply", "for example --set defaults.optimizer.epsilon=1e-7")
    try:
        experiment = resolve(table, source=str(path))
    except InputError as error:
        # Whose fault it is: the file's, where it is refused with the same words as it stands, or that of an override.
        if overrides and str(error) != _refusal(read_toml(path), source=str(path)):
            resolve(table, source="--set")
        raise
    if experiment.data.path is None:
        return experiment
    try:
        absolute = str(Path(experiment.data.path).expanduser().absolute())
    except (OSError, RuntimeError) as error:
        raise InputError(f"data.path: {experiment.data.path} has no place: {error}", "give an absolute path") from None
    if isinstance(experiment, LanguageExperiment):
        return msgspec.structs.replace(experiment, data=msgspec.structs.replace(experiment.data, path=absolute))
    return msgspec.structs.replace(experiment, data=msgspec.structs.replace(experiment.data, path=absolute))


def _refusal(table: dict[str, Any], source: str) -> str | None:
    try:
        resolve(table, source)
    except InputError as error:
        return str(error)
    return None


def resolve(table: dict[str, Any], source: str) -> AnyExperiment:
    """Merge `[defaults]` into every variant and check everything. Raises InputError naming the key in `source`."""
    written = table
    table = dict(table)
    defaults = table.pop("defaults", {})
    variants = table.get("variants", [])
    if not isinstance(defaults, dict) or "name" in defaults:
        raise InputError(
            f"{source}: defaults: expected a table without `name`", "write [defaults] with keys of a variant"
        )
    if variants == []:
        raise InputError(f"{source}: variants: there is none", "add a [[variants]] table with a name")
    if isinstance(variants, list):
        table["variants"] = [
            _merged(defaults, variant) if isinstance(variant, dict) else variant for variant in variants
        ]
    _refuse_impossible_numbers(table, written, source)
    kind = table.get("kind", _KINDS[0].__struct_config__.tag)
    try:
        experiment: AnyExperiment = msgspec.convert(table | {"kind": kind}, AnyExperiment)
    except msgspec.ValidationError as error:
        raise _explain(error, table, written, source) from None
    names = [variant.name for variant in experiment.variants]
    for key, name in (
        ("name", experiment.name),
        *((f"variants[{index}].name", name) for index, name in enumerate(names)),
    ):
        if not name.isprintable() or name != name.strip():
            raise InputError(
                f"{source}: {key}: {name!r} has control characters, or spaces around it", "use printable characters"
            )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"{source}: variants: the name {repeated[0]!r} is used twice", "give each variant its own name"
        )
    for index, variant in enumerate(experiment.variants):
        if isinstance(variant, LanguageVariant):
            _refuse_impossible_heads(variant, f"{source}: ", index, written)
        size, of_what, key = _narrowest(variant)
        if experiment.probes.leading > size:
            raise InputError(
                f"{source}: probes.leading: {experiment.probes.leading} is more than "
                f"{_as_written(f'variants[{index}].{key}', written)} allows: {of_what} {size}",
                f"lower probes.leading or raise {key}",
            )
    if isinstance(experiment, LanguageExperiment):
        kept = tuple(
            _within_budget(variant, f"{source}: {_as_written(f'variants[{index}].steps', written)}", "steps" in merged)
            for index, (variant, merged) in enumerate(zip(experiment.variants, table["variants"], strict=True))
        )
        return msgspec.structs.replace(experiment, variants=kept)
    return experiment


def _narrowest(variant: AnyVariant) -> tuple[int, str, str]:
    """The least number of rows or columns that a measured matrix has; what has them; the key that says so."""
    sizes = [(variant.width, "the width is", "width")]
    if isinstance(variant, LanguageVariant):
        rows = variant.width // variant.heads * variant.key_value_heads
        sizes += [(rows, "the rows of K and V are", "key_value_heads"), (variant.mlp_width, "it is", "mlp_width")]
    return min(sizes, key=lambda size: size[0])


def _refuse_impossible_heads(variant: LanguageVariant, source: str, index: int, written: dict[str, Any]) -> None:
    def path(key: str) -> str:
        return _as_written(f"variants[{index}].{key}", written)

    if variant.width % (2 * variant.heads):
        raise InputError(
            f"{source}{path('heads')}: {variant.heads} heads do not divide a width of {variant.width} into even parts",
            "the width must be a multiple of twice the number of heads: rotary attention turns pairs of numbers",
        )
    if variant.heads % variant.key_value_heads:
        raise InputError(
            f"{source}{path('key_value_heads')}: {variant.key_value_heads} does not divide {variant.heads} heads",
            "give a divisor of the number of heads",
        )
    if variant.batch_size % variant.accumulation:
        raise InputError(
            f"{source}{path('accumulation')}: {variant.accumulation} does not divide a batch of {variant.batch_size}",
            "give a divisor of batch_size",
        )


def _within_budget(variant: LanguageVariant, key: str, has_steps: bool) -> LanguageVariant:
    """The steps that a budget of tokens allows. Raises InputError where `steps` are given as well and are others."""
    if variant.tokens is None:
        return variant
    steps = max(variant.tokens // (variant.batch_size * variant.sequence_length), 1)
    if has_steps and variant.steps != steps:
        raise InputError(
            f"{key}: {variant.steps} steps contradict the budget of {variant.tokens} tokens, which is {steps} steps",
            f"leave out steps or tokens; `--steps {variant.steps}` takes the place of both",
        )
    return msgspec.structs.replace(variant, steps=steps)


def with_steps(experiment: AnyExperiment, steps: int) -> AnyExperiment:
    """The experiment with every variant trained for `steps` steps. Raises InputError below 1."""
    if steps < 1:
        raise InputError(f"steps: expected an integer of at least 1, got {steps}", "give a number of updates")
    if isinstance(experiment, LanguageExperiment):
        return msgspec.structs.replace(
            experiment,
            variants=tuple(
                msgspec.structs.replace(variant, steps=steps, tokens=None) for variant in experiment.variants
            ),
        )
    variants = tuple(msgspec.structs.replace(variant, steps=steps) for variant in experiment.variants)
    return msgspec.structs.replace(experiment, variants=variants)


def _find(name_or_file: str) -> Path:
    names = presets()
    if name_or_file in names:
        return presets_folder() / f"{name_or_file}.toml"
    try:
        path = Path(name_or_file).expanduser()
        if path.is_dir():
            raise InputError(f"{path} is a folder, not an experiment file", "give a TOML file or a preset's name")
        if path.exists():
            return path
    except RuntimeError as error:
        raise InputError(f"{name_or_file} cannot be read: {error}", "give the path in full") from None
    except OSError as error:
        raise InputError(
            f"{name_or_file} cannot be read: {error.strerror}", "check the path and its permissions"
        ) from None
    if path.suffix == ".toml" or "/" in name_or_file or len(path.parts) > 1:
        raise InputError(f"there is no file {path}", f"give a TOML file or one of the presets: {', '.join(names)}")
    near = difflib.get_close_matches(name_or_file, names, n=1, cutoff=0.4)
    remedy = f"did you mean {near[0]}? " if near else ""
    raise InputError(
        f"there is no preset {name_or_file!r}", f"{remedy}the presets are {', '.join(names)}; or give a TOML file"
    )


def _assign(table: dict[str, Any], override: str) -> None:
    """Set `key.path=value` in the raw table; `variants.NAME` finds a variant by its name, which may contain dots."""
    if not override.isprintable():
        raise InputError(f"--set {override!r}: has characters that are not printable text", "write it as UTF-8 text")
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or "" in parts:
        raise InputError(f"--set {override}: expected key.path=value", "for example --set seeds=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text
    except ValueError:
        raise InputError(f"--set {key}: an integer of {len(text)} digits", "give a smaller number") from None
    variants = [item for item in _items(table.get("variants")) if isinstance(item, dict)]
    if parts[0] == "variants" and len(parts) > 1:
        rest = ".".join(parts[1:])
        if rest in {variant.get("name") for variant in variants} | {parts[1]}:
            raise InputError(
                f"--set {override}: name the variant and a key of it", "for example --set variants.NAME.steps=200"
            )
        named = [variant for variant in variants if isinstance(variant.get("name"), str)]
        named = [variant for variant in named if rest.startswith(f"{variant['name']}.")]
        if not named:
            names = ", ".join(str(variant.get("name")) for variant in variants)
            raise InputError(f"--set {override}: there is no variant {parts[1]!r}", f"the variants are {names}")
        node: Any = max(named, key=lambda variant: len(variant["name"]))
        parts = rest[len(node["name"]) + 1 :].split(".")
    elif parts[0] == "defaults" and len(parts) > 1 and variants:
        if all(parts[1] in variant and not _is_partial(parts[1], variant[parts[1]]) for variant in variants):
            raise InputError(
                f"--set {override}: without effect, every variant has its own {parts[1]}",
                f"set variants.NAME.{'.'.join(parts[1:])} for each",
            )
        node = table
    else:
        node = table
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise InputError(f"--set {override}: {part} is a value, not a table", "shorten the key")
    node[parts[-1]] = value


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_partial(key: str, value: Any) -> bool:
    """Whether a variant's value only changes keys of the default one: a table that does not say which kind it is."""
    tag = {"optimizer": "algorithm", "initialization": "scheme"}.get(key)
    return tag is not None and isinstance(value, dict) and tag not in value


def _merged(defaults: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **variant}
    for key, value in variant.items():
        if _is_partial(key, value) and isinstance(defaults.get(key), dict):
            merged[key] = {**defaults[key], **value}
    return merged


def _refuse_impossible_numbers(value: Any, written: dict[str, Any], source: str, where: str = "") -> None:
    """Refuse what no value can be: nan and inf, and integers that a float64, hence JSON, does not hold exactly."""
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_impossible_numbers(item, written, source, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_impossible_numbers(item, written, source, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{source}: {_as_written(where, written)}: {value} is not a finite number", "give a number")
    elif isinstance(value, int) and abs(value) > 2**53:
        raise InputError(f"{source}: {_as_written(where, written)}: the number is too large", "give a smaller number")


def _as_written(where: str, written: dict[str, Any]) -> str:
    """The path of a key in the file: a key that a variant has from [defaults] is named there."""
    match = re.match(r"variants\[(\d+)\]\.([^.\[]+)", where)
    if match is None:
        return where
    index, key = int(match[1]), match[2]
    variant = written["variants"][index]
    value, default = variant.get(key), written.get("defaults", {}).get(key)
    rest = where[match.end() :].lstrip(".")
    is_default = key not in variant or (_is_partial(key, value) and rest and _look_up(value, rest) is None)
    return f"defaults.{where[match.start(2) :]}" if default is not None and is_default else where


def _look_up(value: Any, where: str) -> Any:
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", where):
        try:
            value = value[int(index)] if index else value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _explain(error: msgspec.ValidationError, table: dict[str, Any], written: dict[str, Any], source: str) -> InputError:
    """Turn msgspec's message into `file: key.path: what is wrong`."""
    is_language = table.get("kind") == LanguageExperiment.__struct_config__.tag
    reason, _, where = str(error).rpartition(" - at `$")
    if not reason:
        reason, where = str(error), ""
    where = where.rstrip("`").lstrip(".")
    key_problem = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", reason, re.DOTALL)
    if key_problem:
        kind, key = key_problem.groups()
        path = _as_written(f"{where}.{key}".lstrip("."), written)
        path = path if path.isprintable() else repr(path)
        if kind == "missing required":
            return InputError(f"{source}: {path}: this key is required", "add it")
        near = difflib.get_close_matches(key, [known for known in _known_keys(where, is_language) if known != key], n=1)
        return InputError(f"{source}: {path}: unknown key", f"did you mean {near[0]}?" if near else "remove it")
    path = _as_written(where, written) or "file"
    value = _look_up(table, where)
    choices = _choices(where.rpartition(".")[2], is_language)
    if choices and isinstance(value, str):
        near = difflib.get_close_matches(value, choices, n=1)
        remedy = f"did you mean {near[0]}? " if near else ""
        return InputError(f"{source}: {path}: unknown value {value!r}", f"{remedy}the values are {', '.join(choices)}")
    reason = reason.replace("`", "").replace("object", "table")
    got = "" if ", got " in reason else f", got {value!r}"
    return InputError(f"{source}: {path}: {reason[:1].lower()}{reason[1:]}{got}", "correct the value of that key")


_KINDS: tuple[type[Experiment], type[LanguageExperiment]] = get_args(AnyExperiment)

_CHOICES: dict[str, tuple[str, ...]] = {
    "kind": tuple(str(kind.__struct_config__.tag) for kind in _KINDS),
    "normalization": get_args(Normalization),
    "precision": get_args(Precision),
    "scheme": tuple(str(kind.__struct_config__.tag) for kind in get_args(Initialization)),
    "algorithm": tuple(str(kind.__struct_config__.tag) for kind in get_args(Optimizer)),
}


def _choices(key: str, is_language: bool) -> tuple[str, ...] | None:
    """The words that may stand at a key."""
    if key == "activation":
        return get_args(LanguageActivation if is_language else Activation)
    if is_language and key in ("algorithm", "scheme"):
        return ("adam",) if key == "algorithm" else ("normal",)
    return _CHOICES.get(key)


def _known_keys(where: str, is_language: bool) -> list[str]:
    """The keys that the table at `where` may have."""
    variant, data, experiment = (
        (LanguageVariant, Text, LanguageExperiment) if is_language else (Variant, Data, Experiment)
    )
    kinds: dict[str, tuple[type[msgspec.Struct], ...]] = {
        "": (experiment,),
        "data": (data,),
        "probes": (Probes,),
        "optimizer": (LanguageAdam,) if is_language else get_args(Optimizer),
        "initialization": (Normal,) if is_language else get_args(Initialization),
    }
    fields = {name for kind in kinds.get(where.rpartition(".")[2], (variant,)) for name in kind.__struct_fields__}
    extra = {"": {"defaults", "kind"}, "optimizer": {"algorithm"}, "initialization": {"scheme"}}
    return sorted(fields | extra.get(where.rpartition(".")[2], set()))
