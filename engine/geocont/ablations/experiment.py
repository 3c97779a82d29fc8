"""What an experiment file says: the variants to train, on which data, how, and what to measure.

A file is TOML. `[defaults]` holds what all variants share, each `[[variants]]` table overrides it. Unknown keys, wrong
types and impossible values are refused with the path of the key. `read` resolves a preset's name or a file, applies
`--set key.path=value` overrides and returns an `Experiment` in which every value is explicit.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from geocont.errors import InputError

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Beta = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]
Activation = Literal["none", "relu", "gelu", "silu", "tanh", "leaky_relu", "elu", "radial", "radial_scaled"]
Normalization = Literal["none", "layernorm", "rmsnorm"]

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


class SGD(_Config, frozen=True, kw_only=True, tag_field="algorithm", tag="sgd"):
    """Gradient descent, with momentum if that is above 0. gradient_clip bounds the norm of the whole gradient; 0: none."""

    learning_rate: Positive = 1e-2
    momentum: Beta = 0.0
    weight_decay: NonNegative = 0.0
    gradient_clip: NonNegative = 0.0


Optimizer = Adam | SGD


class Variant(_Config, frozen=True, kw_only=True):
    """One residual MLP: input → width (bias), depth × h ← h + activation(W norm(h) [+ b]), width → classes (bias)."""

    name: Annotated[str, Meta(min_length=1, max_length=40)]
    residual: bool = True
    activation: Activation = "gelu"
    normalization: Normalization = "none"
    bias: bool = False
    depth: Annotated[int, Meta(ge=2)] = 16
    width: Annotated[int, Meta(ge=2)] = 256
    initialization: Initialization = msgspec.field(default_factory=Normal)
    optimizer: Optimizer = msgspec.field(default_factory=Adam)
    steps: Count = 1000
    batch_size: Count = 128


class Data(_Config, frozen=True, kw_only=True):
    """Images to train on: the shipped MNIST, or a folder of IDX files. `images` limits the training set."""

    path: str | None = None
    images: Count | None = None


class Probes(_Config, frozen=True, kw_only=True):
    """When to measure: every step up to `dense`, then at intervals growing by `growth`, at most `interval` steps apart.

    `exact` snapshots (full singular value decompositions) are spread over the training; between them leading vectors are
    followed by warm-started iteration. `leading` is the dimension of the subspaces whose overlap is measured;
    `gap_tolerance` the relative gap (σ1 − σ2)/σ1 under which v1 counts as not unique.
    """

    dense: Annotated[int, Meta(ge=0)] = 4
    growth: Annotated[float, Meta(gt=1)] = 1.3
    interval: Count = 60
    exact: Annotated[int, Meta(ge=1)] = 3
    leading: Annotated[int, Meta(ge=1)] = 10
    gap_tolerance: Annotated[float, Meta(ge=0, lt=1)] = 0.005


class Experiment(_Config, frozen=True, kw_only=True):
    """A set of variants, each trained from the seeds seed, seed + 1, …, seed + seeds − 1."""

    name: Annotated[str, Meta(min_length=1, max_length=60)]
    description: str = ""
    seeds: Count = 3
    seed: Annotated[int, Meta(ge=0)] = 0
    data: Data = msgspec.field(default_factory=Data)
    probes: Probes = msgspec.field(default_factory=Probes)
    variants: Annotated[tuple[Variant, ...], Meta(min_length=1)]


def presets_folder() -> Path:
    """Where the shipped experiments lie: inside the installed package, or `sample_configs` of a checkout."""
    packaged = Path(__file__).parent / "presets"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "sample_configs"


def presets() -> list[str]:
    """Names of the shipped experiments, sorted."""
    return sorted(path.stem for path in presets_folder().glob("*.toml"))


def read(name_or_file: str, overrides: tuple[str, ...] = ()) -> Experiment:
    """Read a preset or an experiment file and apply `key.path=value` overrides.

    Args:
        name_or_file: a preset's name (`mlp`) or a path to a TOML file.
        overrides: assignments such as `seeds=5`, `defaults.width=128`, `variants.Res+None.steps=200`, `data.path=/x`.
            Values are TOML; what does not parse as TOML is taken as a string.

    Raises:
        InputError: no such preset or file, not TOML (with line and column), an unknown key, a wrong type, an impossible
            value (with the path of the key).
    """
    path = _find(name_or_file)
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file (byte {error.start} is not UTF-8)", "give a TOML file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "check the path and its permissions") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}", "correct the file at that place") from None
    for override in overrides:
        _assign(table, override)
    return resolve(table, source=str(path))


def resolve(table: dict[str, Any], source: str) -> Experiment:
    """Merge `[defaults]` into every variant and check everything. Raises InputError naming the key in `source`."""
    table = dict(table)
    defaults = table.pop("defaults", {})
    variants = table.get("variants", [])
    if not isinstance(defaults, dict) or "name" in defaults:
        raise InputError(f"{source}: defaults: expected a table without `name`", "write [defaults] with keys of a variant")
    if isinstance(variants, list):
        table["variants"] = [{**defaults, **variant} if isinstance(variant, dict) else variant for variant in variants]
        if defaults and not variants:
            table["variants"] = []
    try:
        experiment = msgspec.convert(table, Experiment)
    except msgspec.ValidationError as error:
        raise _explain(error, source) from None
    names = [variant.name for variant in experiment.variants]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{source}: variants: the name {repeated[0]!r} is used twice", "give each variant its own name")
    for index, variant in enumerate(experiment.variants):
        if experiment.probes.leading > variant.width:
            raise InputError(
                f"{source}: probes.leading: {experiment.probes.leading} is more than variants[{index}].width = {variant.width}",
                "lower probes.leading or raise the width",
            )
    return experiment


def with_steps(experiment: Experiment, steps: int) -> Experiment:
    """The experiment with every variant trained for `steps` steps."""
    variants = tuple(msgspec.structs.replace(variant, steps=steps) for variant in experiment.variants)
    return msgspec.structs.replace(experiment, variants=variants)


def _find(name_or_file: str) -> Path:
    path = Path(name_or_file).expanduser()
    looks_like_path = path.suffix == ".toml" or len(path.parts) > 1
    if not looks_like_path and name_or_file in presets():
        return presets_folder() / f"{name_or_file}.toml"
    if path.is_dir():
        raise InputError(f"{path} is a folder, not an experiment file", "give a TOML file or a preset's name")
    if path.exists():
        return path
    names = presets()
    if looks_like_path:
        raise InputError(f"there is no file {path}", f"give a TOML file or one of the presets: {', '.join(names)}")
    near = difflib.get_close_matches(name_or_file, names, n=1, cutoff=0.4)
    remedy = f"did you mean {near[0]}? " if near else ""
    raise InputError(f"there is no preset {name_or_file!r}", f"{remedy}the presets are {', '.join(names)}; or give a TOML file")


def _assign(table: dict[str, Any], override: str) -> None:
    """Set `key.path=value` in the raw table; `variants.NAME` finds a variant by its name."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {override}: expected key.path=value", "for example --set seeds=5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = key.strip().split(".")
    node: Any = table
    for position, part in enumerate(parents):
        if isinstance(node, list):
            found = [item for item in node if isinstance(item, dict) and item.get("name") == part]
            if not found:
                names = ", ".join(str(item.get("name")) for item in node if isinstance(item, dict))
                raise InputError(f"--set {override}: there is no variant {part!r}", f"the variants are {names}")
            node = found[0]
        else:
            node = node.setdefault(part, {})
        if not isinstance(node, (dict, list)):
            raise InputError(f"--set {override}: {'.'.join(parents[: position + 1])} is a value, not a table", "shorten the key")
    if isinstance(node, list):
        raise InputError(f"--set {override}: name the variant and a key of it", "for example --set variants.NAME.steps=200")
    node[last] = value


def _explain(error: msgspec.ValidationError, source: str) -> InputError:
    """Turn msgspec's message into `file: key.path: what is wrong`."""
    text = str(error)
    reason, _, where = text.partition(" - at `$")
    where = where.rstrip("`").lstrip(".")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", reason)
    if unknown:
        key = unknown[1]
        path = f"{where}.{key}" if where else key
        near = difflib.get_close_matches(key, _known_keys(), n=1)
        return InputError(f"{source}: {path}: unknown key", f"did you mean {near[0]}?" if near else "remove it")
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if missing:
        path = f"{where}.{missing[1]}" if where else missing[1]
        return InputError(f"{source}: {path}: this key is required", "add it")
    reason = reason.replace("`", "")
    return InputError(f"{source}: {where or 'file'}: {reason[:1].lower()}{reason[1:]}", "correct the value of that key")


def _known_keys() -> list[str]:
    structs = (Experiment, Variant, Data, Probes, Adam, SGD, Normal, Orthogonal)
    return sorted({field for struct in structs for field in struct.__struct_fields__} | {"defaults", "scheme", "algorithm"})
