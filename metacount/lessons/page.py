"""A lesson that was computed: its blocks in order, as plain records."""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json


@frozen
class Block:
    """One piece of a page. kind: heading, paragraph, equation, table or exercise.

    A table has `heads` and `rows`; an exercise has the command to type in `text`, with `...` for
    what is asked, and the same with the answer in `answer`.
    """

    kind: str
    text: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    answer: str = ""


@frozen
class Exercise:
    """A question that `metacount check` judges: `formula` is a right answer for the model.

    `settings` are those of the exercise, on top of the reader's.
    """

    formula: str
    quantity: str = "params"
    settings: tuple[str, ...] = ()


@frozen
class Page:
    """A whole lesson on one model in one language. `values` are the numbers and words put in."""

    topic: str
    lang: str
    model: str
    name: str
    changes: Json
    title: str
    blocks: tuple[Block, ...]
    values: Json
    exercises: tuple[Exercise, ...]

    def to_dict(self, *, answers: bool = False) -> Json:
        """Return the page as plain data;
        an exercise has its answer only where they are asked for.
        """
        return {
            "topic": self.topic,
            "lang": self.lang,
            "model": self.model,
            "name": self.name,
            "changes": self.changes,
            "title": self.title,
            "blocks": [_data(block, answers) for block in self.blocks],
            "values": self.values,
        }


def _data(block: Block, answers: bool) -> Json:
    if block.kind == "table":
        return {"kind": "table", "heads": list(block.heads), "rows": [list(r) for r in block.rows]}
    if block.kind == "exercise":
        answer = {"answer": block.answer} if answers else {}
        return {"kind": "exercise", "command": block.text, **answer}
    return {"kind": block.kind, "text": block.text}
