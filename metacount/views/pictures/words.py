"""The words of pictures, in English and in Chinese; names of models and letters stay."""

from __future__ import annotations

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
