"""One variant in words: its settings, its seeds one by one, and its row as text to copy."""

import msgspec
from geocont.ablations.experiment import LanguageExperiment
from geocont.events import perplexity

from geocont_tui import state as states
from geocont_tui.state import AblationState, Network, Spread
from geocont_tui.widgets.run_table import number
from geocont_tui.widgets.text_pane import Paragraph

LABEL = 19
# Numbers of a variant: field of its summary, and the words for it.
NUMBERS = (
    ("loss", "loss"),
    ("accuracy", "accuracy"),
    ("test_accuracy", "test accuracy"),
    ("perplexity", "perplexity"),
    ("weight_v1", "weight v1"),
    ("weight_u1", "weight u1"),
    ("gradient_v1", "gradient v1"),
    ("sigma_ratio", "σ1/σ2"),
    ("top_overlap", "top overlap"),
    ("identity_share", "c·I share"),
    ("update_ratio", "update ratio"),
    ("drift", "drift"),
    ("cumulative_match", "cumulative match"),
    ("activation_factor", "activation factor"),
)


def variant_paragraphs(state: AblationState, name: str, projection: str = states.HIDDEN) -> tuple[Paragraph, ...]:
    """Settings, numbers of a projection as mean ± standard deviation over seeds, then each seed."""
    variant = states.variant_of(state, name)
    summary = states.summary(state, name, projection)
    of = "" if projection == states.HIDDEN else f" of projection {projection}"
    lines = [Paragraph("settings", "dim")]
    for key, value in msgspec.to_builtins(variant).items():
        if key != "name":
            lines.append(Paragraph(_setting(value, key), indent=LABEL, label=key.replace("_", " ")))
    lines += [Paragraph(""), Paragraph(f"numbers{of} at the latest measurement, {_seeds(state)}", "dim")]
    for field, words in _numbers(state):
        lines.append(Paragraph(_spread(getattr(summary, field)), indent=LABEL, label=words))
    if summary.peak is not None:
        since = "n/a" if summary.below_peak is None else f"{summary.below_peak:+z.2f}"
        peak = f"{number(summary.peak.mean)} at step {summary.peak_step}, {since} since"
        lines.append(Paragraph(peak, indent=LABEL, label=f"peak of {states.peak_quantity(projection).side}"))
    lines += [Paragraph(""), Paragraph("seeds", "dim")]
    lines += [
        Paragraph(_network(network, projection), indent=LABEL, label=f"seed {network.seed}")
        for network in state.of(name)
    ]
    return tuple(lines)


def row_text(state: AblationState, name: str, projection: str = states.HIDDEN) -> str:
    """The variant's numbers as one tab-separated line with a line of names above it."""
    summary = states.summary(state, name, projection)
    columns = ["variant", "step"]
    values = [name, str(summary.step)]
    if projection != states.HIDDEN:
        columns.append("projection")
        values.append(projection)
    for field, _ in _numbers(state):
        found: Spread | None = getattr(summary, field)
        columns += [field, f"{field}_std"]
        values += [_exact(found.mean if found else None), _exact(found.std if found else None)]
    return "\t".join(columns) + "\n" + "\t".join(values)


def _numbers(state: AblationState) -> list[tuple[str, str]]:
    """The numbers that networks of this kind can have."""
    without = ("accuracy", "test_accuracy") if isinstance(state.experiment, LanguageExperiment) else ("perplexity",)
    return [(field, words) for field, words in NUMBERS if field not in without]


def _exact(value: float | None) -> str:
    return "n/a" if value is None else repr(value)


def _seeds(state: AblationState) -> str:
    count = state.experiment.seeds
    return f"mean ± standard deviation over {count} seeds" if count > 1 else "one seed"


def _setting(value: object, name: str = "") -> str:
    if name == "gradient_clip" and value == 0:
        return "off"
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_setting(item, key)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " and ".join(_setting(item) for item in value)
    return str(value)


def _spread(found: Spread | None) -> str:
    if found is None:
        return "n/a"
    return number(found.mean) + (f" ± {number(found.std)}" if found.std is not None else "")


def _network(network: Network, projection: str) -> str:
    parts = [f"step {network.step} of {network.steps}"]
    probes = network.probes(projection)
    is_text = projection != states.HIDDEN
    if probes:
        probe = probes[-1]
        parts.append(f"loss {number(probe.loss)}" + ("" if is_text else f", accuracy {number(probe.accuracy)}"))
        parts.append(f"v1 {number(states.WEIGHT_V1.mean(probe))}, u1 {number(states.WEIGHT_U1.mean(probe))}")
    if is_text and network.held_out_loss is not None:
        parts.append(f"perplexity {number(perplexity(network.held_out_loss))}")
    if network.finished is not None and not is_text:
        parts.append(f"test accuracy {number(network.finished.test_accuracy)}")
    if network.diverged is not None:
        parts.append(f"diverged at step {network.diverged.step}: {network.diverged.reason}")
    return "; ".join(parts)
