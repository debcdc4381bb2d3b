"""Pictures of counts: one look for all, words in two languages, the file that they end in."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from metacount import units
from metacount.errors import InputError, shown
from metacount.figures import BYTES, FIGURES, FLOPS, MACS, VALUES
from metacount.output_file import check_writable, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontEntry

    from metacount.measure.activations import Curve
    from metacount.resolve import Given
    from metacount.sharding.result import Sharded
    from metacount.textbook.series import Bar, Cache


ENDINGS = (".svg", ".png", ".pdf")

# Okabe and Ito's colours, which people with any colour vision can tell apart, and two greys.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#555555",
    "#999999",
)

LOOK: dict[str, object] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    # the same picture gives the same bytes
    "svg.hashsalt": "metacount",
    "savefig.dpi": 150,
}


def check_output(file: str) -> None:
    """Check before anything is computed: the ending is known and the folder can be written to."""
    ending = os.path.splitext(file)[1].lower()
    if ending not in ENDINGS:
        said = f"'{shown(ending)}'" if ending else "no ending"
        raise InputError(f"-o must end in {', '.join(ENDINGS)}: got {said} in {shown(file)}")
    check_writable("-o", file)


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches, whose parts make room for each other."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = matplotlib.rcParams  # its keys are typed one by one
    settings.update(LOOK)
    return Figure(figsize=(width, height), layout="constrained")


def plain(text: str) -> str:
    """Write somebody's text in letters that can be drawn; a $ is one, no start of a formula."""

    return known_letters(text).replace("$", r"\$")


def save(figure: Figure, file: str) -> None:
    """Write the picture, without the date that would make each one different."""
    from io import BytesIO

    ending = os.path.splitext(file)[1].lower()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[ending]
    give_letters(figure)
    drawn = BytesIO()
    figure.savefig(drawn, format=ending[1:], metadata=metadata)
    write_whole("-o", file, drawn.getvalue())


PLAIN = "DejaVu Sans"  # comes with matplotlib
NO_LETTER = "\N{WHITE SQUARE}"
# For Chinese, those that are made for it: others draw some letters as Japanese or Korean does.
FIRST = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Microsoft YaHei",
    "Hiragino Sans GB",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "SimHei",
    "Noto Sans CJK JP",
    "Noto Serif CJK SC",
)
NO_SHAPES = "Last Resort"  # a font of boxes


def known_letters(text: str) -> str:
    """Replace each letter of a text that no installed font has by a square."""
    _, missing = _families(text)
    return "".join(NO_LETTER if letter in missing else letter for letter in text)


def give_letters(figure: Figure) -> None:
    """Set fonts that have, together, the letters of all texts of a figure."""
    from matplotlib.text import Text

    texts = [one for one in figure.findobj(Text) if isinstance(one, Text)]
    families, _ = _families("".join(text.get_text() for text in texts))
    if len(families) > 1:
        for text in texts:
            text.set_fontfamily(families)


def _families(text: str) -> tuple[list[str], set[str]]:
    """Find fonts for a text, each for letters that those before lack, and the letters none has."""
    families, missing = [PLAIN], {letter for letter in text if letter != "\n"}
    missing -= _letters_of_plain()
    for name, letters in _installed() if missing else ():
        if missing & letters:
            families.append(name)
            missing -= letters
        if not missing:
            break
    return families, missing


def check_chinese(words: Iterable[str]) -> None:
    """Raise `InputError` where no installed font has the letters of these words."""
    needed = {letter for word in words for letter in word} - _letters_of_plain()
    if not any(needed <= letters for _, letters in _installed()):
        raise InputError(
            "--lang zh: no installed font has Chinese letters; install one, such as Noto Sans CJK "
            "(Debian: fonts-noto-cjk)"
        )


@cache
def _letters_of_plain() -> set[str]:
    from matplotlib.font_manager import findfont

    return _letters(findfont(PLAIN), 0)


def _installed() -> Iterator[tuple[str, set[str]]]:
    """Yield families that are installed with their letters, the ones made for Chinese first.

    matplotlib's own list is from when it was first used: newer fonts are added to it.
    """
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.fname for entry in fontManager.ttflist}
    for file in sorted(findSystemFonts()):
        if file not in known:
            try:
                fontManager.addfont(file)
            except (OSError, RuntimeError):  # a broken file is no font of ours
                continue
    entries: dict[str, FontEntry] = {}
    for entry in fontManager.ttflist:
        regular = entry.style == "normal" and entry.weight in (400, "normal")
        if not entry.name.startswith(NO_SHAPES) and (regular or entry.name not in entries):
            entries[entry.name] = entry
    order = [*(name for name in FIRST if name in entries), *sorted(set(entries) - set(FIRST))]
    for name in order:
        try:
            yield name, _letters(entries[name].fname, getattr(entries[name], "index", 0))
        except (OSError, RuntimeError):
            continue


@cache
def _letters(file: str, index: int) -> set[str]:
    from matplotlib import ft2font

    # older versions of matplotlib know the first face of a collection only
    font = ft2font.FT2Font(file, face_index=index) if index else ft2font.FT2Font(file)
    return {chr(code) for code in font.get_charmap()}


# What is not here is the same in both.
CHINESE = {
    "embedding": "词嵌入",
    "position": "位置编码",
    "attention": "注意力",
    "ffn": "前馈网络",
    "recurrent": "状态混合层",
    "moe": "混合专家",
    "norm": "归一化",
    "head": "输出头",
    "other": "其他",
    "self-attention": "自注意力",
    "cross-attention": "交叉注意力",
    "parameters": "参数量",
    "active_params": "激活参数量",
    "matmul_flops": "前向矩阵乘 FLOP 数",
    "causal_matmul_flops": "前向矩阵乘 FLOP 数（仅计掩码保留的位置对）",
    "decode_matmul_flops": "解码一个词元的矩阵乘 FLOP 数",
    "kv_cache_bytes": "KV 缓存",
    "powers of 1000": "千进位",
    "share": "占比",
    "share of the parameters": "占全部参数的比例",
    "batch": "批量",
    "seq": "序列长度",
    "KV cache of one token, all layers": "每个词元的 KV 缓存（所有层）",
    "KV cache": "KV 缓存",
    "tokens of the sequence": "序列中的词元数",
    "the model's own": "模型自身",
    "every layer keeps every token": "每层保留全部词元",
    "activation": "激活函数",
    "derivative": "导数",
}


def say(text: str, lang: str) -> str:
    """Translate `text` into a language; words that have no other form stay.

    >>> say("share", "en"), say("share", "zh"), say("llama-7b", "zh")
    ('share', '占比', 'llama-7b')
    """
    return CHINESE.get(text, text) if lang == "zh" else text


LEAST_LABELLED = 0.06  # of a bar; a smaller part has no room for its percentage
DARK = ("#0072B2", "#009E73", "#D55E00", "#555555")  # white text reads better on these
MOST_BARS = 40
WIDEST_NAME = 30  # letters of one line of a name
WIDEST_NOTE = 150
THOUSANDS = ((6, "E"), (5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "k"), (0, ""))
# Letter and size of the units of an axis, the largest first.
AXES = {
    VALUES: (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3), ("", 1)),
    BYTES: (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1)),
    **{
        unit: tuple((f"{letter}{unit}", 1000**power) for power, letter in THOUSANDS)
        for unit in (FLOPS, MACS)
    },
}
# One colour for each part, in every picture; cross-attention is beside self-attention only.
PARTS = (
    "embedding",
    "position",
    "attention",
    "recurrent",
    "ffn",
    "moe",
    "norm",
    "head",
    "other",
    "self-attention",
    "cross-attention",
    "conv",
)
COLOUR_OF = {
    part: COLOURS[i] for part, i in zip(PARTS, (0, 1, 2, 8, 4, 3, 6, 5, 7, 2, 1, 0), strict=True)
}


def plot(
    *models: Given, quantity: str = "params", seq_lens: Sequence[int] = (), lang: str = "en"
) -> Figure:
    """Draw one quantity of models, as `metacount plot` does: matplotlib's figure, to show or save.

    >>> plot("llama-7b", "mixtral-8x7b").axes[1].get_xlabel()
    'share of the parameters [%]'
    """
    from metacount.resolve import model_of
    from metacount.spec import Request
    from metacount.textbook.series import bars

    found = [model_of(model) for model in models]
    requests = [Request(seq_len=n) for n in seq_lens] or [Request()]
    figure = quantities_figure(
        bars([(one.name, one) for one in found], requests, quantity), quantity, lang
    )
    give_letters(figure)
    vars(figure)["_repr_png_"] = partial(_png, figure)  # what a notebook shows
    return figure


def _png(figure: Figure) -> bytes:
    from io import BytesIO

    file = BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()


def quantities_figure(bars: Sequence[Bar], quantity: str, lang: str = "en") -> Figure:
    """Draw one bar for each of `bars`, absolute on the left, percent on the right."""
    runs = bool(FIGURES[quantity].run)  # what is stored is the same whatever is run
    rows = [(_name(bar, bars, lang) if runs else bar.label, bar.parts) for bar in bars]
    notes = _notes(bars) if runs else []
    return _figure(rows, quantity, lang, said=_said(bars, quantity, lang), notes=notes)


def _notes(bars: Sequence[Bar]) -> list[str]:
    """Write each warning once, after the model, or after how many models it is of."""
    models: dict[str, dict[str, None]] = {}
    for bar in bars:
        for text in bar.warnings:
            models.setdefault(text, {})[bar.model] = None
    return [
        f"{next(iter(those)) if len(those) == 1 else f'{len(those)} models'}: {text}"
        for text, those in models.items()
    ]


def _name(bar: Bar, bars: Sequence[Bar], lang: str) -> str:
    """Name a bar by what it does not share with the others."""
    at = f"{say('seq', lang)} {bar.run.seq_len:,}"
    same_length = len({one.run.seq_len for one in bars}) == 1
    same_label = len({one.label for one in bars}) == 1
    if same_length:
        return bar.label
    return at if same_label else f"{bar.label}, {at}"


def _said(bars: Sequence[Bar], quantity: str, lang: str) -> str:
    """Say what all bars share: the model where it is not beside them, and what is run."""
    models, lengths = {bar.model for bar in bars}, {bar.run.seq_len for bar in bars}
    run = bars[0].run
    found = []
    if FIGURES[quantity].run:
        found = [f"{say('batch', lang)} {run.batch_size:,}"]
        found += [f"{say('seq', lang)} {run.seq_len:,}"] if len(lengths) == 1 else []
        found += [run.dtype] if "c" in FIGURES[quantity].run else []
    beside = len(bars) == 1 or any(bar.label != bar.model for bar in bars) or len(lengths) > 1
    name = [bars[0].model] if len(models) == 1 and beside and len(bars) > 1 else []
    return ": ".join(filter(None, [*name, ", ".join(found)]))


def _figure(
    rows: Sequence[tuple[str, dict[str, int]]],
    quantity: str,
    lang: str,
    *,
    said: str,
    notes: Sequence[str],
) -> Figure:
    if len(rows) > MOST_BARS:
        raise InputError(f"{len(rows)} bars are too many for one picture, at most {MOST_BARS}")
    totals = [sum(parts.values()) for _, parts in rows]
    if not any(totals):
        raise InputError(f"there is nothing to draw: {quantity} is 0 for all that was asked for")
    parts = [part for part in PARTS if any(found.get(part) for _, found in rows)]
    names = [plain("\n".join(textwrap.wrap(name, WIDEST_NAME))) for name, _ in rows]
    lines = max(name.count("\n") + 1 for name in names)
    # one part alone has no shares
    figure = new_figure(10, 1.4 + max(0.5, 0.2 * lines) * max(2, len(rows)) + 0.2 * len(notes))
    axes = figure.subplots(1, 2 if len(parts) > 1 else 1, sharey=True, squeeze=False)[0]
    _bars(axes, rows, totals, parts, _unit(quantity, max(totals)), lang)
    for place, total in enumerate(totals):
        axes[0].text(
            total / _unit(quantity, max(totals)),
            place,
            f" {FIGURES[quantity].short(total)}",
            va="center",
            fontsize=8,
        )
    axes[0].set_yticks(range(len(rows)), names)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)  # the first one on top
    _labels(axes, quantity, max(totals), lang)
    if said:
        axes[0].set_title(plain(said), loc="left", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    if len(parts) > 1:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    if notes:
        below = [line for note in notes for line in textwrap.wrap(note, WIDEST_NOTE)]
        figure.supxlabel(plain("\n".join(below)), x=0.01, ha="left", fontsize=7.5, color="#555555")
    return figure


def _bars(
    axes: Sequence[Axes],
    rows: Sequence[tuple[str, dict[str, int]]],
    totals: Sequence[int],
    shown: Sequence[str],
    unit: int,
    lang: str,
) -> None:
    places, lefts = range(len(rows)), [0] * len(rows)
    for part in shown:
        colour = COLOUR_OF[part]
        values = [parts.get(part, 0) for _, parts in rows]
        axes[0].barh(
            places,
            [v / unit for v in values],
            left=[x / unit for x in lefts],
            color=colour,
            label=say(part, lang),
            height=0.66,
        )
        if len(shown) > 1:
            _shares(axes[1], values, lefts, totals, colour)
        lefts = [x + v for x, v in zip(lefts, values, strict=True)]


def _shares(
    axes: Axes, values: Sequence[int], lefts: Sequence[int], totals: Sequence[int], colour: str
) -> None:
    for place, (value, left, total) in enumerate(zip(values, lefts, totals, strict=True)):
        if not total:
            continue
        share, start = 100 * value / total, 100 * left / total
        axes.barh([place], [share], left=[start], color=colour, height=0.66)
        if share >= 100 * LEAST_LABELLED:
            text = ">99 %" if share >= 99.5 and value < total else f"{share:.0f} %"
            axes.text(
                start + share / 2,
                place,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color="white" if colour in DARK else "black",
            )


def _labels(axes: Sequence[Axes], quantity: str, largest: int, lang: str) -> None:
    letter, unit = _unit_of(quantity, largest)
    name = "parameters" if quantity == "params" else quantity
    thousands = say("powers of 1000", lang)
    if FIGURES[quantity].unit == BYTES:
        bracket = f" [{letter}]" if unit == 1 else f" [{letter} = 2^{unit.bit_length() - 1} B]"
    else:
        bracket = f" [{letter}, {thousands}]" if unit > 1 else ""
    axes[0].set_xlabel(say(name, lang) + bracket)
    axes[0].set_xlim(0, (1.14 if FIGURES[quantity].unit == VALUES else 1.2) * largest / unit)
    for one in axes:
        one.grid(axis="x")
        one.tick_params(axis="y", length=0)
    if len(axes) > 1:
        share = "share of the parameters" if quantity == "params" else "share"
        axes[1].set_xlabel(f"{say(share, lang)} [%]")
        axes[1].set_xlim(0, 100)


def _unit(quantity: str, largest: int) -> int:
    return _unit_of(quantity, largest)[1]


def _unit_of(quantity: str, largest: int) -> tuple[str, int]:
    known = AXES[FIGURES[quantity].unit]
    return next((u for u in known if largest >= u[1]), known[-1])


def short_tokens(n: int) -> str:
    """Format a number of tokens, in units of 1024 where it is a multiple.

    >>> [short_tokens(n) for n in (1, 128, 1000, 1024, 16384)]
    ['1', '128', '1000', '1K', '16K']
    """
    return f"{n // 1024}K" if n % 1024 == 0 else str(n)


def caches_figure(
    title: str, kinds: Sequence[Cache], lengths: Sequence[int], batch_size: int, lang: str
) -> Figure:
    """Draw the cache's bytes of one token on the left, of whole sequences on the right."""
    figure = new_figure(10, 4)
    one, whole = figure.subplots(1, 2, width_ratios=(5, 4))
    largest = max(kind.bytes_per_token for kind in kinds)
    letter, unit = next(u for u in AXES[BYTES] if largest >= u[1])
    names, mine = [], say("the model's own", lang)
    for place, (kind, colour) in enumerate(zip(kinds, COLOURS, strict=False)):
        one.barh([place], [kind.bytes_per_token / unit], color=colour, height=0.66)
        one.text(
            kind.bytes_per_token / unit,
            place,
            f" {units.gib(kind.bytes_per_token)}",
            va="center",
            fontsize=8,
        )
        sizes = ", ".join(f"{name} = {size}" for name, size in kind.sizes.items())
        own = f"\n({mine})" if kind.own else ""
        names.append(f"{kind.kind}\n{sizes}{own}")
        whole.plot(
            lengths,
            [batch_size * n * kind.bytes_per_token / 2**30 for n in lengths],
            "o-",
            color=colour,
            markersize=3.5,
            linewidth=2.4 if kind.own else 1.3,
            label=kind.kind,
        )
    one.set_yticks(range(len(kinds)), names)
    one.set_ylim(len(kinds) - 0.5, -0.5)
    one.set_xlim(0, 1.2 * largest / unit)
    power = unit.bit_length() - 1
    one.set_xlabel(f"{say('KV cache of one token, all layers', lang)} [{letter} = 2^{power} B]")
    one.tick_params(axis="y", length=0)
    one.grid(axis="x")
    whole.set_xscale("log", base=2)
    whole.set_yscale("log", base=2)
    whole.set_xticks(lengths, [short_tokens(n) for n in lengths])
    whole.set_xticks([], minor=True)
    whole.yaxis.set_major_formatter(lambda x, _: f"{x:g}" if x >= 1 else f"1/{1 / x:.0f}")
    whole.set_yticks([], minor=True)
    whole.set_xlabel(f"{say('tokens of the sequence', lang)}, {say('batch', lang)} {batch_size}")
    whole.set_ylabel(f"{say('KV cache', lang)} [GiB = 2^30 B]")
    whole.grid(which="major")
    whole.legend(loc="upper left")
    said = f"{plain(title)}: {say('every layer keeps every token', lang)}"
    figure.suptitle(said, x=0.01, ha="left", fontsize=9)
    return figure


JUMP = 0.25  # between two neighbours: a derivative that has a step there, not a slope
LINES = ("-", "--", "-.", ":")


def activations_figure(curves: Sequence[Curve], lang: str) -> Figure:
    """Draw y on the left, dy/dx on the right; a step of a derivative is left open."""
    if len(curves) > len(COLOURS):
        raise InputError(f"{len(curves)} activations cannot be told apart, at most {len(COLOURS)}")
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    for i, curve in enumerate(curves):
        look = {"color": COLOURS[i], "linestyle": LINES[i % len(LINES)], "linewidth": 1.7}
        left.plot(curve.x, curve.y, label=curve.name, **look)
        right.plot(curve.x, _with_gaps(curve.derivative), **look)
    for axes, name in ((left, "activation"), (right, "derivative")):
        axes.set_title(say(name, lang), loc="left")
        axes.axhline(0, color="#888888", linewidth=0.7, zorder=0)
        axes.axvline(0, color="#888888", linewidth=0.7, zorder=0)
        axes.grid()
        axes.set_xlabel("x")
        axes.set_xlim(curves[0].x[0], curves[0].x[-1])
    left.set_ylim(-1, max(2.0, min(4.0, max(max(curve.y) for curve in curves))))
    right.set_ylim(-0.4, 2)
    figure.legend(loc="outside upper center", ncols=min(len(curves), 7))
    return figure


def _with_gaps(values: Sequence[float]) -> list[float]:
    """Copy the values, with NaN after a step so that nothing is drawn across it."""
    found = list(values)
    for i in range(1, len(values)):
        if abs(values[i] - values[i - 1]) > JUMP:
            found[i] = float("nan")
    return found


def mesh_figure(found: Sharded, job: str) -> Figure:
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
    said = f"{plain(found.name)} on {units.exact(mesh.world)} ranks: {mesh}\n{job}"
    figure.suptitle(said, x=0.01, ha="left", fontsize=9)
    return figure
