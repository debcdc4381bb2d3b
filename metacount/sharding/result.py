"""What a mesh makes of a model: what each kind of rank holds and sends, measured or by formula."""

from __future__ import annotations

from metacount.formulas.dim import chunk
from metacount.frozen import fields, frozen
from metacount.sharding.mesh import PER_MACHINE, Mesh
from metacount.spec import DTYPE_BYTES

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

FOLLOWED = ("adamw", "sgd", "sgd-momentum")  # optimizers whose steps were compared with real ones
# What runs between which ranks.
GROUPS = {
    "tp": "ranks that hold parts of the same matrices",
    "dp": "ranks that hold the same, of which ZeRO gives each a share",
    "copies": "ranks that hold the same experts",
    "ep": "ranks that hold different experts",
    "cp": "ranks that hold parts of the same sequences",
    "pp": "the next stage and the one before",
}


@frozen
class Held:
    """One tensor of a part on one rank: cut by tp or ep, and then spread by ZeRO.

    `active` are the values that one token uses at most: of the experts that this rank has, top_k.
    `shard` are the values that ZeRO leaves here; `expert` says that it is spread over the ranks
    that hold the same experts; `trained`, that it has a gradient: an indexer has none.
    """

    name: str
    role: str
    whole: tuple[int, ...]
    cut: tuple[int, ...]
    active: int
    shard: int
    expert: bool = False
    trained: bool = True


@frozen
class Collective:
    """What a rank does together with others, `times` a step: a tensor of `n_bytes` in all.

    `n_bytes` is the whole tensor: what a gather makes, what a scatter takes. `machines`: over how
    many its ranks are spread; `outside`: how many of the others are on another machine than a rank.
    """

    phase: str
    kind: str
    group: str
    ranks: int
    n_bytes: int
    times: int
    machines: int = 1
    outside: int = 0

    @property
    def sent(self) -> int:
        """Bytes that a rank sends each time; see `ring_bytes`."""
        return ring_bytes(self.kind, self.n_bytes, self.ranks)

    @property
    def sent_between_machines(self) -> int:
        """Of these, what leaves the machine, for the rank that sends most of it there.

        In a ring the last rank of a machine sends all of its own to another; what goes from each
        to each leaves for the ranks that are elsewhere.
        """
        if self.machines == 1:
            return 0
        if self.kind == "all-to-all":
            return self.outside * -(-self.n_bytes // self.ranks)
        return self.sent


def ring_bytes(kind: str, n_bytes: int, ranks: int) -> int:
    """Count the bytes that one rank sends in a collective,
    where each sends to one neighbour in turn.

    A tensor is n pieces of ⌈bytes / n⌉. Each rank passes on n - 1 pieces to gather or to scatter,
    and does both to reduce for all. What goes to all directly is n - 1 pieces as well.

    What is permuted goes to one other rank as a whole.

    >>> ring_bytes("all-gather", 800, 8), ring_bytes("all-reduce", 800, 8)
    (700, 1400)
    >>> ring_bytes("permute", 800, 8)
    800
    """
    if kind in ("send", "broadcast", "permute"):
        return n_bytes
    if kind == "receive" or ranks == 1:
        return 0
    once = (ranks - 1) * -(-n_bytes // ranks)
    return 2 * once if kind == "all-reduce" else once


@frozen
class Kind:
    """Ranks that hold and send the same: which, and how much.

    `activation_bytes` are what the backward keeps of the forward, of so many micro-batches at once
    (None: no formula counts it); `recomputed_bytes` what a checkpointed block keeps in addition
    while its backward runs, of the block that keeps most, its input included. `loss_bytes` are two
    gradients of the logits, in float32 at least, and that of the loss, which are there before those
    of parameters, but for those that micro-batches before have left (`accumulates`).
    `backward_gradient_bytes` and `backward_activation_bytes`: of the gradients and of what is kept,
    what is there at the worst moment of the blocks' backward, which frees the one as it makes the
    other. `embedding_bytes`: what is there beside these when the gradient of the embedding is made,
    as of a table that the head reads, too: two are summed. `input_bytes` are the tokens and targets
    of a micro-batch; what the backward keeps has them, too. `step_bytes` are what the optimizer's
    step holds for a moment, as it runs on CUDA by default (foreach); `passing_bytes` a bound on
    what comes and goes while the backward of a block runs, which is not counted.
    `state_bytes` are what mixers keep of the sequences that are served, however long these are.

    `total_bytes` is the most of what is counted that is there at once, in the loss, the backward of
    blocks or of the embedding, or the step; `parts` are those of that moment. `most_bytes`: with
    all that may come and go beside these, so that no moment has more. `peak_bytes`: what is alive
    at the worst moment of a step, to the byte, less buffers; of `peak_parts`. None where nobody
    can say, and `peak_unknown` says why.
    """

    ranks: tuple[tuple[int, int, int], ...]  # first, last, step
    count: int
    stages: tuple[int, ...]
    layers: int
    params: int
    active_params: int
    by_role: dict[str, int]
    param_bytes: int
    gathered_bytes: int
    gradients: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int | None
    micro_batches_kept: int
    recomputed_bytes: int
    kv_cache_bytes: int
    state_bytes: int
    collectives: tuple[Collective, ...]
    loss_bytes: int = 0
    step_bytes: int = 0
    passing_bytes: int = 0
    backward_gradient_bytes: int = 0
    backward_activation_bytes: int = 0
    embedding_bytes: int = 0
    input_bytes: int = 0
    accumulates: bool = False
    parts: dict[str, int]
    total_bytes: int
    most_bytes: int
    peak_bytes: int | None
    peak_parts: dict[str, int] | None
    peak_unknown: str

    @property
    def first(self) -> int:
        """The first rank of the kind."""
        return self.ranks[0][0]

    def holds(self, rank: int) -> bool:
        """Tell whether a rank is of this kind."""
        return any(a <= rank <= b and (rank - a) % step == 0 for a, b, step in self.ranks)

    def sent(self) -> dict[str, int]:
        """Count the bytes that a rank of this kind sends in a step, by group."""
        n_bytes: dict[str, int] = {}
        for each in self.collectives:
            n_bytes[each.group] = n_bytes.get(each.group, 0) + each.times * each.sent
        return n_bytes

    def sent_between_machines(self) -> dict[str, int]:
        """Count the bytes that leave the machine, by group, for the rank that sends most."""
        n_bytes: dict[str, int] = {}
        for each in self.collectives:
            between = each.times * each.sent_between_machines
            n_bytes[each.group] = n_bytes.get(each.group, 0) + between
        return n_bytes

    def to_dict(self) -> Json:
        """Return the kind of rank as plain data."""
        data = {name: getattr(self, name) for name in fields(Kind)}
        data["ranks"] = [{"first": a, "last": b, "step": step} for a, b, step in self.ranks]
        data["stages"] = list(self.stages)
        data["collectives"] = [
            {
                **{name: getattr(each, name) for name in fields(Collective)},
                "sent": each.sent,
                "sent_between_machines": each.sent_between_machines,
            }
            for each in self.collectives
        ]
        data["sent_bytes"] = self.sent()
        data["sent_between_machines_bytes"] = self.sent_between_machines()
        return data


@frozen
class Job:
    """What is done on the mesh: a step of training, or serving, and in which form."""

    mesh: Mesh
    train: bool
    zero: int
    optimizer: str
    batch_size: int  # sequences of all ranks together
    seq_len: int
    micro_batches: int
    dtype: str
    master: bool = False  # parameters are kept in float32, and computed with in `dtype`
    attention: str = "eager"
    checkpointing: str = "none"
    schedule: str = "1f1b"
    per_machine: int = PER_MACHINE
    sequence_parallel: bool = False  # of tp: tokens between the matrices are spread, too
    loss_parallel: bool = False  # of tp: each rank keeps the logits of its part of the vocabulary
    kv_dtype: str | None = None  # of the cache; None: `dtype`
    decodes: bool = True  # served, it goes on token by token; an encoder has read all at once

    @property
    def stored(self) -> str:
        """The type that parameters, gradients and what an optimizer keeps are stored in."""
        return "fp32" if self.master else self.dtype

    @property
    def ring(self) -> bool:
        """Whether what cp ranks exchange is run and counted: torch does it by fused kernels."""
        return self.train and self.mesh.cp > 1 and self.attention == "flash"

    @property
    def rows(self) -> int:
        """Sequences that one rank runs at a time."""
        return self.batch_size // (self.mesh.dp * self.micro_batches)

    def loss_bytes(self, vocab_size: int, tensor: int) -> int:
        """Count the bytes of two gradients, of the log-softmax and of the logits: 2·w·n·V.

        With loss parallelism V is what the rank at `tensor` in its tp group has of the vocabulary.
        In float32 at least, and of the loss's own: w. They are there together when the backward of
        a cross-entropy begins; the log-softmax itself is kept.
        """
        wide = max(4, DTYPE_BYTES[self.dtype])
        if self.loss_parallel:
            vocab_size = int(chunk(vocab_size, self.mesh.tp, tensor))
        return wide * (2 * self.rows * self.length * vocab_size + 1) if self.train else 0

    @property
    def replicated(self) -> bool:
        """Whether each rank has the whole model: its step is that of DistributedDataParallel.

        What is sent is counted as by FSDP2, block by block, not by DDP's buckets.
        """
        return self.train and self.zero == 0 and 1 < self.mesh.world == self.mesh.dp

    @property
    def unfollowed(self) -> str:
        """Why nobody can say what a rank holds at the worst moment of a step; empty where one can.

        What is followed was compared with real processes; see `tests/sharding/test_real.py`.
        """
        mesh = self.mesh
        reasons = {
            "serving is no step": not self.train,
            "what cp ranks exchange is run with --attention flash alone": (
                mesh.cp > 1 and not self.ring
            ),
            "float32 beside another type is FSDP2's": (
                self.master and (mesh.shard == 1 or self.zero == 0)
            ),
            f"the step of {self.optimizer} is not followed": self.optimizer not in FOLLOWED,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    @property
    def uncounted(self) -> str:
        """Why a run alone knows the worst moment of a step; empty where a formula may."""
        mesh = self.mesh
        reasons = {
            "what stages hold in a schedule": mesh.pp > 1,
            "what a ring of cp ranks holds": mesh.cp > 1,
            f"what FSDP2 holds with ZeRO {self.zero}": (
                self.zero < 2 and mesh.shard > 1 and not self.replicated
            ),
            "what loss parallelism holds": self.loss_parallel,
        }
        what = next((what for what, holds in reasons.items() if holds), "")
        return what and f"{what} is followed in a run, not counted"

    def kept_at(self, stage: int) -> int:
        """Count the micro-batches that went forward through a stage, and not yet back, at most.

        1f1b: as many as there are stages from this one on; gpipe: all.
        """
        if not self.train or self.mesh.pp == 1:
            return int(self.train)
        ahead = self.mesh.pp - stage if self.schedule == "1f1b" else self.micro_batches
        return min(ahead, self.micro_batches)

    @property
    def length(self) -> int:
        """Tokens of each sequence that one rank runs."""
        return self.seq_len // self.mesh.cp

    @property
    def tokens_between(self) -> int:
        """Tokens of a micro-batch that one rank has between the matrices."""
        return self.rows * self.length // (self.mesh.tp if self.sequence_parallel else 1)

    @property
    def passes(self) -> dict[str, int]:
        """The forwards that are run, and the tokens of each sequence that a rank runs in them."""
        if self.train or not self.decodes:
            return {"forward": self.length}
        return {"prompt": self.length, "token": 1}

    @property
    def token_counts(self) -> list[int]:
        """Tokens that a rank runs at a time, in each of the passes."""
        return [self.rows * length for length in self.passes.values()]

    def to_dict(self) -> Json:
        """Return the job as plain data."""
        data = {name: getattr(self, name) for name in fields(Job)}
        data["mesh"] = {name: getattr(self.mesh, name) for name in fields(Mesh)}
        data["world"] = self.mesh.world
        return data


@frozen
class Sharded:
    """A model on a mesh: every kind of rank, the largest first."""

    model: str
    name: str
    job: Job
    kinds: tuple[Kind, ...]
    params: int  # of the whole model
    missing: tuple[str, ...]
    source: str

    @property
    def largest(self) -> Kind:
        """The rank that holds most."""
        return max(self.kinds, key=lambda kind: kind.total_bytes)

    @property
    def smallest(self) -> Kind:
        """The rank that holds least."""
        return min(self.kinds, key=lambda kind: kind.total_bytes)

    def kind_of(self, rank: int) -> Kind:
        """Find the kind of a rank."""
        return next(kind for kind in self.kinds if kind.holds(rank))

    def to_dict(self) -> Json:
        """Return the model on its mesh as plain data."""
        return {
            "model": self.model,
            "name": self.name,
            **self.job.to_dict(),
            "params": self.params,
            "largest": self.largest.first,
            "smallest": self.smallest.first,
            "kinds": [kind.to_dict() for kind in self.kinds],
            "missing": list(self.missing),
            "source": self.source,
        }
