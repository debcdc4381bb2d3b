"""Which layers of a stack are of a kind: one law, read as a sequence or counted at once."""

from __future__ import annotations

from metacount.frozen import frozen


@frozen
class Law:
    """Layers from `after` on where `every` divides i + 1 - offset, or whose letter is in `letter`.

    The first n dense: `after`. Every c-th: `every`, shifted by `offset`. Alternating, or listed one
    by one: `letters`, repeated over the layers. `but` turns it round: all layers but those.

    >>> Law(after=1, every=2).sequence(7)
    (False, True, False, True, False, True, False)
    >>> Law(letters="LLG", letter="L").sequence(7)
    (True, True, False, True, True, False, True)
    >>> Law(every=4, but=True).sequence(4), Law(every=4, but=True).count(61)
    ((True, True, True, False), 46)
    """

    after: int = 0
    every: int = 1
    offset: int = 0
    letters: str | None = None
    letter: str = "L"
    but: bool = False

    def holds(self, index: int) -> bool:
        """Tell whether layer `index`, from 0, is of the kind."""
        if self.letters is not None:
            found = self.letters[index % len(self.letters)] in self.letter
        else:
            found = bool(index >= self.after and (index + 1 - self.offset) % self.every == 0)
        return found is not self.but

    def sequence(self, n_layers: int) -> tuple[bool, ...]:
        """Tell of each layer whether it is of the kind."""
        return tuple(self.holds(index) for index in range(n_layers))

    def count(self, n_layers: int) -> int:
        """Count how many of the first `n_layers` are of the kind, without going through them.

        A symbol is taken at its word: `after` is no more than the layers.
        """
        if self.letters is not None:
            period = len(self.letters)
            # letter i falls on the layers i, i + period, ... up to the last
            places = [i for i, letter in enumerate(self.letters) if letter in self.letter]
            found = sum((n_layers - 1 - i) // period + 1 for i in places)
        else:
            numbers = isinstance(n_layers, int) and isinstance(self.after, int)
            leading = min(self.after, n_layers) if numbers else self.after
            # multiples of `every` among i + 1 - offset, up to the last layer, less the leading ones
            found = (n_layers - self.offset) // self.every - (leading - self.offset) // self.every
        return n_layers - found if self.but else found
