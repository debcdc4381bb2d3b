"""A mesh of ranks, each in the colour of what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount import units
from metacount.views.pictures.picture import new_figure, plain
from metacount.views.shard import job_said

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from metacount.sharding.result import Sharded


def mesh_figure(found: Sharded) -> Figure:
    """Draw stages below each other: a row for each tp index, a column for each of dp and cp."""
    import numpy as np

    mesh = found.job.mesh
    held = np.zeros(mesh.world)
    for kind in found.kinds:
        for first, last, step in kind.ranks:
            held[first : last + 1 : step] = kind.total_bytes
    rows = held.reshape(mesh.pp, mesh.shard, mesh.tp).transpose(0, 2, 1)
    figure = new_figure(9, min(9, 1.8 + 0.25 * mesh.pp + 0.08 * mesh.pp * mesh.tp))
    axes = figure.subplots()
    drawn = axes.imshow(
        rows.reshape(mesh.pp * mesh.tp, mesh.shard) / 2**30,
        cmap="cividis",
        aspect="auto",
        interpolation="nearest",
    )
    for stage in range(1, mesh.pp):
        axes.axhline(stage * mesh.tp - 0.5, color="white", linewidth=1.5)
    middles = [stage * mesh.tp + (mesh.tp - 1) / 2 for stage in range(mesh.pp)]
    few = range(0, mesh.pp, -(-mesh.pp // 16))
    axes.set_yticks([middles[stage] for stage in few], [f"stage {stage}" for stage in few])
    axes.set_ylabel(f"in each stage, tp {mesh.tp}")
    axes.set_xlabel(f"dp {mesh.dp}" + (f" · cp {mesh.cp}" if mesh.cp > 1 else ""))
    figure.colorbar(drawn, ax=axes, label="bytes of a rank [GiB]")
    said = f"{plain(found.name)} on {units.exact(mesh.world)} ranks: {mesh}\n{job_said(found.job)}"
    figure.suptitle(said, x=0.01, ha="left", fontsize=9)
    return figure
