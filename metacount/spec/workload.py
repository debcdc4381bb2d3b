"""What is run: how many sequences, how long, in which dtype."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import fields, frozen
from metacount.spec.field import MAX_TOKENS, check_int

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

SEQ_LEN = 2048  # tokens of a sequence, where nobody says and the model can run them

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
FOUR_BITS = frozenset(("int4", "uint4", "fp4", "nf4", "nvfp4", "mxfp4", "4bit", "q4_0", "q4_k"))


@frozen
class Workload:
    """What is run: `batch_size` sequences of `seq_len` tokens in `dtype`.

    An encoder-decoder reads `source_len` tokens (None: `seq_len`) and writes `seq_len`.
    A prefix-decoder sees its first `prefix_len` tokens in both directions.
    """

    batch_size: int = 1
    seq_len: int = SEQ_LEN
    dtype: str = "bf16"
    source_len: int | None = None
    prefix_len: int = 0

    def __post_init__(self) -> None:
        _check(self)

    def to_dict(self) -> Json:
        """Return every field, in order."""
        return {name: getattr(self, name) for name in fields(type(self))}

    @property
    def encoder_len(self) -> int:
        """Tokens that an encoder-decoder's encoder reads."""
        return self.seq_len if self.source_len is None else self.source_len


@frozen
class Request:
    """What somebody asks to be run: a `Workload` whose length may be left to the model."""

    batch_size: int = 1
    seq_len: int | None = None
    dtype: str = "bf16"
    source_len: int | None = None
    prefix_len: int = 0

    def __post_init__(self) -> None:
        self.within(None)

    def within(self, longest: int | None) -> Workload:
        """Return the workload for a model that can run `longest` tokens (None: any number).

        A length that was asked for stays, whatever the model can run.

        >>> Request().within(512).seq_len, Request().within(8192).seq_len
        (512, 2048)
        >>> Request(seq_len=600).within(512).seq_len
        600
        """
        n = min(SEQ_LEN, longest or SEQ_LEN) if self.seq_len is None else self.seq_len
        return Workload(
            batch_size=self.batch_size,
            seq_len=n,
            dtype=self.dtype,
            source_len=self.source_len,
            prefix_len=self.prefix_len,
        )


def _check(run: Workload) -> None:
    for name, lowest in (("batch_size", 1), ("seq_len", 1), ("prefix_len", 0)):
        check_int(name, getattr(run, name), lowest, MAX_TOKENS)
    if run.source_len is not None:
        check_int("source_len", run.source_len, 1, MAX_TOKENS)
    if run.prefix_len > run.seq_len:
        rule = "must be at most seq_len"
        raise SpecError("prefix_len", rule, run.prefix_len, f"choose 0 to {run.seq_len}")
    check_dtype("dtype", run.dtype)


def check_dtype(field: str, dtype: object) -> None:
    """Raise `SpecError` for a dtype without so many whole bytes a value."""
    if isinstance(dtype, str) and dtype in DTYPE_BYTES:
        return
    rule, remedy = "is unknown", f"choose one of {', '.join(DTYPE_BYTES)}"
    if isinstance(dtype, str) and dtype in FOUR_BITS:
        rule = "has 4 bits a value, and scales beside them that depend on the format"
        remedy = "give a config with its quantization_config: stored_bytes has both"
        if field == "kv_dtype":
            remedy = "choose fp8 or int8"
    raise SpecError(field, rule, dtype, remedy)
