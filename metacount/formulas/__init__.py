"""The algebra of transformer sizes, from papers: a file per topic, ints or symbols, no torch."""
