"""How the spectrum of a variant's weights went: one row a probe, newest first, means over seeds.

table = SpectrumTable(palette)      table.show(SpectrumData(rows, leading, notes))
"""

from dataclasses import dataclass

from geocont.events import Probe

from geocont_tui.palette import Palette
from geocont_tui.state import HIDDEN, AblationState, peak_quantity, spread
from geocont_tui.widgets.lines import Line, Lines, wrap
from geocont_tui.widgets.run_table import fraction, mean, number

FIELDS = ("sigma_ratio", "top_overlap", "identity_share", "update_ratio", "drift", "activation_factor")


@dataclass(frozen=True)
class SpectrumData:
    """`rows` are (step, one mean over layers and seeds for each of FIELDS), oldest first; `leading` is the dimension
    of the subspaces whose overlap is shown; `reasons` says of a field without any number why; `directions` says whether
    those subspaces are of inputs or outputs."""

    rows: tuple[tuple[int, tuple[float | None, ...]], ...] = ()
    leading: int = 10
    reasons: tuple[str, ...] = ()
    directions: str = "input"


def spectrum_of(state: AblationState, variant: str, projection: str = HIDDEN) -> SpectrumData:
    """The numbers of a projection of a variant at every step at which all of its seeds were measured."""
    side = peak_quantity(projection).side[0]
    fields = tuple(f"top_overlap_{side}" if field == "top_overlap" else field for field in FIELDS)
    measured = [probes for probes in (network.probes(projection) for network in state.of(variant)) if probes]
    by_step: dict[int, list[Probe]] = {}
    for probes in measured:
        for probe in probes:
            by_step.setdefault(probe.step, []).append(probe)
    rows = tuple(
        (step, tuple(mean(spread([getattr(probe, field) for probe in at_step])) for field in fields))
        for step, at_step in sorted(by_step.items())
        if len(at_step) == len(measured)
    )
    reasons = tuple(
        dict.fromkeys(
            f"{field.replace('_', ' ')}: {reason}"
            for probes in measured
            for field, reason in probes[-1].missing.items()
            if field in fields
        )
    )
    return SpectrumData(rows, state.experiment.probes.leading, reasons, "output" if side == "u" else "input")


class SpectrumTable(Lines):
    """The rows as a widget, with what the columns mean below them."""

    def __init__(self, palette: Palette, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(palette, id=id, classes=classes)
        self._data = SpectrumData()

    def show(self, data: SpectrumData) -> None:
        """Show `data`, repainting only what changed."""
        if data != self._data:
            self._data = data
            self.update_frame()

    def lines(self, width: int, height: int) -> list[Line]:
        palette, data = self._palette, self._data
        if not data.rows:
            return [(("nothing is measured yet", palette.dim),)]
        sigma = "s1/s2" if palette.ascii_only else "σ1/σ2"
        top = f"top{data.leading}"
        headers = (sigma, top, "c·I", "ΔW/W", "drift", "act.")
        shown = [i for i in range(len(FIELDS)) if any(values[i] is not None for _, values in data.rows)]
        # Newest first: the present is what one looks for, the rest is a page away.
        lines: list[Line] = [((" step" + "".join(f"{headers[i]:>6}" for i in shown), palette.dim),)]
        for step, values in reversed(data.rows):
            texts = [number(values[i]) if i in (0, 3) else fraction(values[i]) for i in shown]
            lines.append(((f"{step:>5}" + "".join(f"{text:>6}" for text in texts), palette.text),))
        meanings = (
            f"{sigma}: largest singular value over the second; near 1 the leading direction is not unique",
            f"{top}: overlap of the {data.leading} leading {data.directions} directions of adjacent layers, "
            "1 = the same",
            "c·I: share of the weights that is a multiple of the identity",
            "ΔW/W: size of what training changed, over the initial weights",
            "drift: how far the leading direction turned since the previous probe, 0 = not",
            "act.: mean factor of the radial activation, 1 = acts as if it were not there",
        )
        lines.append(((" ", palette.dim),))
        for i in shown:
            lines += wrap(meanings[i], width, palette.dim)
        for reason in data.reasons:
            lines += wrap(f"n/a  {reason}", width, palette.dim)
        return lines
