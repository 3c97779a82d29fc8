"""What the help says: every key of the screen, from the table of keys, and the words used on it."""

from geocont_tui import keys
from geocont_tui.widgets.text_pane import Paragraph

_COMMON = (
    ("chance", "what two random directions of that dimension show on average"),
    ("n/a", "this number does not exist; the reason stands beside it, in the details or in the table"),
)
WORDS = {
    "home": (
        ("live", "a process writes it now; opening it watches: leaving the view, or this terminal, does not stop it"),
        ("paused", "live, and standing still until somebody lets it go on"),
        ("done", "finished; opening it shows it again, as it was live"),
        ("stopped", "somebody stopped it; what was measured by then is kept, and it can be resumed"),
        ("interrupted", "its process ended before it did: killed, or the machine went down; it can be resumed"),
        ("failed", "it could not go on; the reason stands beside it"),
        (
            "headline",
            "of an experiment: weight v1 of its variants, the highest first, then the lowest; of an analysis: the mean "
            "|cos| of adjacent layers for each projection, on the side that meets the residual stream",
        ),
    ),
    "ablation": (
        (
            "v1, u1",
            "leading right and left singular vector of a layer's weights W: v1 in its input space, u1 in its output",
        ),
        (
            "weight v1",
            "|cos| between the v1 of adjacent layers, mean over all pairs of layers: 1 is the same direction",
        ),
        (
            "gradient",
            "the same of the gradient of one step; cumulative: of the sum of all gradients so far; update: of W - W0",
        ),
        ("Δpeak", "weight v1 now, less its highest value so far"),
        ("± and band", "standard deviation over the seeds"),
        *_COMMON,
    ),
    "analysis": (
        (
            "v1, u1",
            "leading right and left singular vector of a layer's weights W: v1 in its input space, u1 in its output; "
            "shown is |cos| between two layers: 1 is the same direction",
        ),
        (
            "*",
            "the side that meets the residual stream, which all layers share: input of q k v gate up, output of "
            "o down. The other side is a basis of each layer's own, where chance is what to expect",
        ),
        ("not unique", "σ1 and σ2 are so close that v1 could as well be another direction; left out of the means"),
        ("bound", "how far off the computed cosine can be at most"),
        (
            "gram",
            "alignment of the whole spectrum: the cosine between WᵀW (or WWᵀ) of two layers, less what is the same in "
            "all directions; chance is 0",
        ),
        ("_ and ›", "not read yet; one of the two layers is read"),
        ("= and ×", "both layers hold the same weights; no cosine for another reason, which the pair's details give"),
        ("quantised", "stored in fewer bits: σ and v1 carry that error"),
        *_COMMON,
    ),
}


def help_text(place: keys.Place, ascii_only: bool) -> tuple[Paragraph, ...]:
    """The keys of a screen and the words on it, as paragraphs."""
    rows = [Paragraph(key.help, indent=14, label=_labels(key, ascii_only)) for key in keys.of(place)]
    words = [
        Paragraph(meaning, indent=14, label=_ascii(word) if ascii_only else word)
        for word, meaning in WORDS.get(place, ())
    ]
    return (Paragraph("keys", "dim"), *rows, Paragraph(""), Paragraph("words", "dim"), *words)


def _labels(key: keys.Key, ascii_only: bool) -> str:
    others = [name for name in key.keys[1:] if len(name) <= 6]
    return ", ".join([keys.label(key, ascii_only), *others])


def _ascii(word: str) -> str:
    return word.replace("Δ", "d").replace("±", "+-").replace("›", ">").replace("×", "x")
