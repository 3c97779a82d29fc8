"""What the help says: every key of the screen, from the table of keys, and the words used on it."""

from geocont_tui import keys
from geocont_tui.widgets.text_pane import Paragraph

WORDS = (
    (
        "v1, u1",
        "leading right and left singular vector of a layer's weights W: v1 in its input space, u1 in its output",
    ),
    ("weight v1", "|cos| between the v1 of adjacent layers, mean over all pairs of layers: 1 is the same direction"),
    (
        "gradient",
        "the same of the gradient of one step; cumulative: of the sum of all gradients so far; update: of W - W0",
    ),
    ("Δpeak", "weight v1 now, less its highest value so far"),
    ("chance", "what two random directions of that dimension show on average"),
    ("± and band", "standard deviation over the seeds"),
    ("n/a", "this number does not exist; the reason stands beside it, in the details or in the table"),
)


def help_text(place: keys.Place, ascii_only: bool) -> tuple[Paragraph, ...]:
    """The keys of a screen and the words on it, as paragraphs."""
    rows = [Paragraph(key.help, indent=14, label=_labels(key, ascii_only)) for key in keys.of(place)]
    words = [Paragraph(meaning, indent=14, label=_ascii(word) if ascii_only else word) for word, meaning in WORDS]
    return (Paragraph("keys", "dim"), *rows, Paragraph(""), Paragraph("words", "dim"), *words)


def _labels(key: keys.Key, ascii_only: bool) -> str:
    others = [name for name in key.keys[1:] if len(name) <= 6]
    return ", ".join([keys.label(key, ascii_only), *others])


def _ascii(word: str) -> str:
    return word.replace("Δ", "d").replace("±", "+-")
