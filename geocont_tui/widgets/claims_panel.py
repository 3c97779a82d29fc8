"""What this shows: each claim of the source that the experiment tests, a mark and a word for it, and the numbers.

panel = ClaimsPanel(palette)      panel.show(findings)
compact(findings, width, palette) -> list[Line]     one line a claim
full(findings, width, palette) -> list[Line]        with numbers and reasons
"""

from collections.abc import Sequence

from geocont.claims import Finding
from rich.cells import cell_len

from geocont_tui.palette import Palette
from geocont_tui.widgets.lines import Line, Lines, wrap

WORD = len("contradicted")


class ClaimsPanel(Lines):
    """The findings, one line each where there is no room for more."""

    def __init__(
        self,
        palette: Palette,
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
        none: str = "this experiment tests none of the claims that are known here",
    ) -> None:
        super().__init__(palette, id=id, classes=classes)
        self._none = none
        self._findings: tuple[Finding, ...] | None = None

    def show(self, findings: tuple[Finding, ...] | None) -> None:
        """Show `findings`, repainting only what changed; None before anything is measured."""
        if findings != self._findings:
            self._findings = findings
            self.update_frame()

    def lines(self, width: int, height: int) -> list[Line]:
        if self._findings is None:
            return [(("nothing is measured yet", self._palette.dim),)]
        if not self._findings:
            return wrap(self._none, width, self._palette.dim)
        everything = full(self._findings, width, self._palette)
        return everything if len(everything) <= height or height >= 9 else compact(self._findings, width, self._palette)


def compact(findings: Sequence[Finding], width: int, palette: Palette) -> list[Line]:
    """One line a claim: mark, word, claim, and the numbers where they fit as a whole: half a number is a wrong one."""
    claim_width = max((cell_len(finding.claim) for finding in findings), default=0)
    lines: list[Line] = []
    for finding in findings:
        style = palette.verdicts[finding.verdict]
        line: Line = (
            (f"{palette.glyphs.verdicts[finding.verdict]} {finding.verdict.ljust(WORD)} ", style),
            (finding.claim, palette.text),
        )
        room = width - WORD - 3 - cell_len(finding.claim)
        # In ASCII some signs take two cells.
        needs = 2 + cell_len(finding.numbers) + sum(finding.numbers.count(sign) for sign in "…±")
        if finding.numbers and needs <= room:
            gap = min(claim_width - cell_len(finding.claim) + 2, room - needs + 2)
            line = (*line, (" " * gap + finding.numbers, palette.dim))
        lines.append(line)
    return lines


def full(findings: Sequence[Finding], width: int, palette: Palette) -> list[Line]:
    """Mark, word and claim, and under it the numbers and the reason."""
    lines: list[Line] = []
    indent = WORD + 3 if width >= 50 else 2
    for finding in findings:
        style = palette.verdicts[finding.verdict]
        mark = palette.glyphs.verdicts[finding.verdict]
        if width >= 50:
            claim = wrap(finding.claim, width, palette.text, indent)
            lines.append(((f"{mark} {finding.verdict.ljust(WORD)} ", style), (claim[0][0][0][indent:], palette.text)))
            lines += claim[1:]
        else:
            lines.append(((f"{mark} {finding.verdict}", style),))
            lines += wrap(finding.claim, width, palette.text, indent)
        for text in (finding.numbers, finding.reason):
            lines += wrap(text, width, palette.dim, indent)
    return lines
