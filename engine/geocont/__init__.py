"""geocont: geometric continuity of weight matrices, in numbers only.

The leading singular vectors of adjacent layers' weight matrices point in similar directions (arXiv 2605.04971).
`geocont.ablations` trains networks in which this forms or collapses; every long job is a generator of the events in
`geocont.events`. Importing this package imports neither torch nor a terminal library.
"""

__version__ = "0.1.0"
