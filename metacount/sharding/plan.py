"""How the modules of a model are cut: a plan as data, ours for the reference modules or a file's.

`{"tp": {"decoder.layers.*.mlp.up_proj": "colwise"}, "pp": [16, 15]}`: patterns of modules' names,
in which * is any number, and the style of each; the layers of each pipeline stage.
"""

from __future__ import annotations

from metacount.errors import InputError, SpecError, shown
from metacount.frozen import frozen
from metacount.sharding.mesh import Mesh, divisors, stage_layers
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, CompressedAttention, LatentAttention
from metacount.spec.position import Alibi, Learned, RelativeBuckets, TransformerXL
from metacount.spec.rules import beyond_branches
from metacount.spec.stack import BESIDE, WITH_STATE

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.sharding.result import Job
    from metacount.spec.attention import NoAttention


@frozen
class Plan:
    """The style of each module, by pattern, and the layers of each stage where somebody says."""

    styles: dict[str, str]
    layers: tuple[int, ...] | None = None
    source: str = "ours"


def default_plan(spec: ModelSpec) -> Plan:
    """Make the plan of our reference modules.

    Projections to heads and hidden widths by columns, projections back by rows (Shoeybi et al.
    2019, arXiv:1909.08053, sec. 3), the tables by rows of the vocabulary, the head by its columns.
    The parts that read one input share the sum of its gradients.
    """
    stack = spec.last_stack
    mixer = stack.attention
    styles = {"embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"}
    for side in ("encoder", "decoder"):
        block = f"{side}.layers.*."
        styles |= {block + name: style for name, style in _attention(mixer).items()}
        styles |= {block + name: style for name, style in _feed_forward("mlp").items()}
        for mixture in ("mlp", "moe"):  # in place of a feed-forward, or beside one
            shared = _feed_forward(f"{mixture}.shared_experts")
            styles |= {block + name: style for name, style in shared.items()}
            styles[f"{block}{mixture}.experts"] = "experts"
    return Plan(styles=styles)


def _attention(
    mixer: Attention | LatentAttention | CompressedAttention | NoAttention,
) -> dict[str, str]:
    if isinstance(mixer, LatentAttention):
        query = "q_proj" if mixer.q_lora_rank is None else "q_b_proj"
        return {
            "self_attn": "local_heads",
            f"self_attn.{query}": "colwise",
            "self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj",
            "self_attn.kv_b_proj": "colwise",
            "self_attn.o_proj": "rowwise",
        }
    styles = {"self_attn": "shared_input", "self_attn.o_proj": "rowwise"}
    styles |= {f"self_attn.{letter}_proj": "colwise" for letter in "qkvg"}
    styles |= {f"self_attn.{letter}_norm": "replicated_with_grad_allreduce" for letter in "qk"}
    if isinstance(mixer, Attention) and (mixer.sinks or mixer.of_layer(True).sinks):
        styles["self_attn.core"] = "local_params"
    return styles


def _feed_forward(name: str) -> dict[str, str]:
    return {
        name: "shared_input",
        f"{name}.gate_proj": "colwise",
        f"{name}.up_proj": "colwise",
        f"{name}.down_proj": "rowwise",
        f"{name}.act_fn": "replicated_with_grad_allreduce",
    }


# where tokens between the matrices are spread, too
SPREAD = {
    "embedding_rowwise": "embedding_rowwise_spread",
    "shared_input": "gathered_input",
    "rowwise": "rowwise_spread",
    "colwise_gather_output": "colwise_of_spread",
}


def for_mesh(plan: Plan, job: Job) -> dict[str, str]:
    """Return the styles as a job needs them: with `ep`, experts are whole and spread, else cut;
    with sequence or loss parallelism the inputs and outputs are of other ranks' parts.
    """
    how = {"experts": "ep_dispatch_experts" if job.mesh.ep > 1 else "moe_tp_experts"}
    how |= SPREAD if job.sequence_parallel else {}
    if job.loss_parallel:
        head = "colwise_gather_output"
        how[head] = "colwise_logits" + "_of_spread" * job.sequence_parallel
    return {name: how.get(style, style) for name, style in plan.styles.items()}


def read_plan(path: str) -> Plan:
    """Read the plan in a JSON file, or raise an `InputError`."""
    from metacount.files import read_json

    data = read_json(path)
    where = shown(path)
    unknown = sorted(data.keys() - {"tp", "pp"})
    if unknown:
        raise InputError(f"{where}: a plan has tp and pp: got {shown(unknown[0])}; leave it out")
    styles, layers = data.get("tp", {}), data.get("pp")
    if not isinstance(styles, dict) or not all(isinstance(v, str) for v in styles.values()):
        raise InputError(
            f"{where}: tp must be an object of patterns and styles: got {shown(styles)}"
        )
    if layers is not None and not _whole_numbers(layers):
        raise InputError(f"{where}: pp must be a list of numbers of layers: got {shown(layers)}")
    return Plan(styles=styles, layers=None if layers is None else tuple(layers), source=path)


def _whole_numbers(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int for v in values)


def check_fits(spec: ModelSpec, mesh: Mesh) -> None:
    """Raise `SpecError` or `InputError` for a degree that this model cannot be cut by.

    Widths, the vocabulary, layers and what ZeRO spreads may be cut unevenly; heads and experts are
    whole.
    """
    _check_model(spec, mesh)
    check_streams(spec)
    _check_apart(spec, mesh)
    together, mixture = _together(spec), spec.last_stack.mixture
    if mesh.pp > len(together):
        raise InputError(
            f"--mesh pp must be at most the {len(together)} layers"
            + (" or groups of them that stay together" if max(together) > 1 else "")
            + f": got {mesh.pp} stages; choose 1 to {len(together)}"
        )
    if mesh.ep > 1 and mixture is None:
        raise InputError(f"--mesh ep needs a model with experts: got ep={mesh.ep}; leave it out")
    names = ("n_heads", "n_kv_heads", "n_heads_windowed", "n_kv_heads_windowed")
    sizes = [("tp", name, getattr(spec, name)) for name in names]
    if mixture is not None:
        sizes.append(("ep", "n_experts", mixture.n_experts))
        sizes.append(("tp", "d_ff_expert", mixture.d_ff if mesh.ep == 1 else None))
    for degree, field, size in sizes:
        n = getattr(mesh, degree)
        if size is not None and size % n:
            raise InputError(
                f"--mesh {degree} must divide {field}: {size} % {n} = {size % n}; "
                f"choose {divisors(size)}"
            )
    if mesh.tp > 1 and mesh.ep == 1 and mixture is not None and mixture.bias:
        raise InputError(
            "--mesh tp cuts experts, and the biases of these would be added "
            "on every rank; choose ep > 1 to keep them whole"
        )


def _check_model(spec: ModelSpec, mesh: Mesh) -> None:
    """Raise `SpecError` for a model that no mesh, or not this one, has a plan for."""

    def refuse(field: str, why: str, remedy: str = "choose another model") -> None:
        raise SpecError(field, f"has no plan for a mesh: {why}", getattr(spec, field), remedy)

    positions = spec.positions
    if spec.has_encoder:
        why = "every layer of the decoder reads what the encoder gave"
        refuse("kind", why, "choose a decoder or an encoder")
    if spec.moe_latent_rank is not None and min(mesh.tp, mesh.ep) > 1:
        why = "with tp and ep formula and run differ in what is recomputed"
        refuse("moe_latent_rank", why, "choose one of the two")
    if isinstance(positions, Learned) and positions.n_query_positions:
        refuse("n_query_positions", "the last layer reads what the first stage holds")
    if isinstance(positions, RelativeBuckets):
        refuse("position", "the layers of all stages read one table")
    if spec.embedding is None:
        refuse("vocab_size", "the first stage reads tokens", "choose a model with a vocabulary")


def _check_apart(spec: ModelSpec, mesh: Mesh) -> None:
    """Raise `InputError` where a degree would part what has to stay together."""

    def keep_together(degrees: str, what: str) -> None:
        for degree in degrees.split():
            if getattr(mesh, degree) > 1:
                raise InputError(f"--mesh {degree} has no plan for {what}; choose {degree}=1")

    stack, mixture = spec.last_stack, spec.last_stack.mixture
    if spec.kind == "encoder":
        keep_together("cp", "an encoder: torch's ring takes causal attention")
    if stack.shared is not None:
        keep_together(
            "pp tp cp", f"n_shared_blocks={stack.shared.n_blocks}, blocks that layers share"
        )
    if spec.index_block_len is not None:
        chooses = "a block indexer that chooses for heads of all ranks"
        keep_together("tp cp", f"index_block_len={spec.index_block_len}, {chooses}")
    if any(map(spec.shares_index, range(stack.n_layers))):
        keep_together("pp", f"index_sharing={spec.index_sharing}, layers that another chooses for")
    if set(stack.mixer_pattern) & set(WITH_STATE):
        keep_together("cp", f"recurrent={spec.recurrent}, a mixer that keeps a state")
    if mixture is not None and mixture.zero is not None and mixture.zero.rows:
        keep_together("ep", "zero_expert_rows, matrices that stand for no expert")
    if isinstance(stack.attention, Attention) and stack.attention.qk_norm == "full":
        keep_together("tp", "qk_norm=full, which spans all heads")
    if isinstance(spec.positions, Alibi | TransformerXL):
        keep_together("tp", f"position={spec.position}, which spans all heads")


def layers_of_stages(spec: ModelSpec, mesh: Mesh, plan: Plan) -> list[int]:
    """Count the layers of each stage: as even as can be, or as the plan says.

    Experts beside a feed-forward, and the layer that adds what they give, are of one stage.
    """
    stack = spec.last_stack
    together = _together(spec)
    if plan.layers is None and len(together) < stack.n_layers:
        layers, left = [], iter(together)
        for n in stage_layers(len(together), mesh.pp):
            layers.append(sum(next(left) for _ in range(n)))
        return layers
    layers = stage_layers(stack.n_layers, mesh.pp, plan.layers)
    end = 0
    for n in layers:
        end += n
        if stack.ffn_of(end - 1) == BESIDE:
            raise InputError(
                f"pp of the plan ends a stage with layer {end - 1}, whose experts' output the next "
                f"one adds: got {shown(layers)}; move one layer"
            )
    return layers


def _together(spec: ModelSpec) -> list[int]:
    """Count the layers that a stage must have together, group by group."""
    stack = spec.last_stack
    if BESIDE not in stack.ffn_pattern:
        return [1] * stack.n_layers
    groups, n = [], 0
    for i in range(stack.n_layers):
        n += 1
        if stack.ffn_of(i) != BESIDE:
            groups.append(n)
            n = 0
    return groups


def check_streams(spec: ModelSpec) -> None:
    """Raise `InputError` for what stands in and around blocks, which no plan places."""
    name = beyond_branches(spec)
    if name:
        raise InputError(
            f"no plan for a mesh has a place for {name}={getattr(spec, name)}; choose another "
            "model, or count this one without a mesh"
        )
