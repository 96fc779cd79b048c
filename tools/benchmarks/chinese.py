"""Tables of figures in Chinese, for the Chinese pages.

A cell is translated as a whole, or else piece by piece between its commas, semicolons
and colons. Names, units and figures stay.
"""

import datetime
import re
from collections.abc import Iterable

from roformer_keras.base.errors import ConfigurationError

WORDS = {
    # Of several tables.
    "work": "任务",
    "ratio": "比值",
    "ratio to bert4keras": "与 bert4keras 之比",
    "share": "占比",
    "goal": "目标",
    "reached": "实测",
    "seconds": "秒",
    "texts/s": "条/s",
    "reviews/s": "条/s",
    "rows/s": "行/s",
    "lines/s": "行/s",
    "alone": "单独",
    "the same": "同上",
    "the same in bfloat16": "同上，bfloat16",
    "on average": "平均",
    "the base model": "base 模型",
    "matrix products alone": "只算矩阵乘法",
    "a sentence": "一句话",
    "a sentence of 16 tokens": "16 个 token 的一句话",
    "1 sample": "1 条",
    "16 samples": "16 条",
    "against bert4keras": "与 bert4keras 相比",
    "against TensorFlow": "与 TensorFlow 相比",
    "peak memory": "内存峰值",
    # Search.
    "searching": "检索",
    "queries/s": "条/s",
    "times numpy": "numpy 的几倍",
    "recall": "召回率",
    "exact": "精确",
    "approximate": "近似",
    "one by one": "逐条",
    # Serving.
    "base size (12 layers, width 768), random weights: clients": (
        "base 规模（12 层，隐藏维度 768），随机权重：客户端数"
    ),
    "`roformer-sim-char` (4 layers, width 192): clients": (
        "`roformer-sim-char`（4 层，隐藏维度 192）：客户端数"
    ),
    "texts of a request": "每个请求的文本数",
    "texts of a batch": "每批文本数",
    "p50, p99 in ms": "p50、p99，ms",
    "model and texts": "模型和文本",
    "clients": "客户端数",
    "lines": "诗句",
    "4 layers of width 312": "4 层，隐藏维度 312",
    "short request": "短请求",
    "long request": "长请求",
    "alone, p50, p99 in ms": "单独时的 p50、p99，ms",
    "next to it, p50, p99 in ms": "与长请求同时，p50、p99，ms",
    "p99, times that alone": "p99 是单独时的几倍",
    "this server": "本服务器",
    "plain FastAPI with sentence-transformers": "FastAPI 加 sentence-transformers",
    # Performance: all in one run.
    "limit": "上限",
    "vectors of texts": "文本向量",
    "the vector of a text of 16 tokens": "16 个 token 的一条文本的向量",
    "1 sample of 112 tokens": "1 条 112 个 token 的文本",
    "300 prompts of all lengths": "300 个长短不一的提示",
    "update of a classifier": "更新一次分类器",
    "load the zip; bert4keras: its folder": "加载 zip；bert4keras：其文件夹",
    "with AMX": "有 AMX",
    "bfloat16 against transformers": "bfloat16 与 transformers 相比",
    "default against transformers": "默认引擎与 transformers 相比",
    "figure": "指标",
    "`openvino` as a share of OpenVINO's products": (
        "`openvino` 占 OpenVINO 矩阵乘法的比例"
    ),
    "`openvino-int8` against `openvino`": "`openvino-int8` 与 `openvino` 相比",
    "time of `paraphrase` with `openvino` as a share of the Keras engine's": (
        "`paraphrase` 用 `openvino` 的时间占 Keras 引擎的比例"
    ),
    "both in float32": "都用 float32",
    "both in bfloat16": "都用 bfloat16",
    "bfloat16 against float32": "bfloat16 比 float32",
    "`model(ids)` of the short text": "短文本的 `model(ids)`",
    # Loading and converting.
    "from its folder": "从文件夹加载",
    "from its zip, which users of bert4keras unpack first, s": (
        "从 zip 加载（bert4keras 的用户要先解压），s"
    ),
    "from its zip; bert4keras from its folder, s": (
        "从 zip 加载；bert4keras 从文件夹加载，s"
    ),
    "peak memory with the zip": "从 zip 加载时的内存峰值",
    "peak above TensorFlow alone, as a share of the weights": (
        "除 TensorFlow 本身以外的峰值，与权重大小之比"
    ),
    "convert the zip to a preset folder": "把 zip 转换成 preset 文件夹",
    "base model (382 MB of weights) to a preset, `.keras` or `.weights.h5`": (
        "base 模型（权重 382 MB）转换成 preset、`.keras` 或 `.weights.h5`"
    ),
    "to a bert4keras zip": "转换成 bert4keras 的 zip",
    "to safetensors, the only format that is built in memory": (
        "转换成 safetensors，只有这种格式要先在内存里生成"
    ),
    # Encoding.
    "320 reviews and poems of 5 to 471 characters": ("320 条 5 至 471 个字的评论和诗"),
    "10,000 lines by character": "10,000 行，按字",
    "10,000 lines by word": "10,000 行，按词",
    # Generation.
    "112 tokens after a prompt of 16": "16 个 token 的提示之后生成 112 个",
    "16 samples of one prompt": "一个提示生成 16 条",
    "16 prompts": "16 个提示",
    "a sentence of 20 characters": "20 个字的句子",
    "64 tokens each": "每条 64 个 token",
    "on 21 November": "21 日测得",
    "texts that end after about 20 tokens": "约 20 个 token 就结束的文本",
    "share of what the matrix products alone allow": "占只算矩阵乘法时速度的比例",
    "1 sample (54.5 tokens/s alone)": "1 条（只算矩阵乘法时 54.5 tokens/s）",
    "in a new process, compilation included": "在新进程中，包括编译",
    "first token of a stream": "流式输出的第一个 token",
    "second token": "第二个 token",
    "a first `generate` of 112 tokens": "第一次 `generate`，112 个 token",
    "MB above the tiny model": "比极小的模型多出的 MB",
    "as a share of the weights and the keys of all tokens": (
        "与权重加全部 token 的 key 和 value 之比"
    ),
    "100 of RoFormer-Sim": "RoFormer-Sim 的 100 条",
    "a step of generation": "生成的一步",
    "time of XLA against that of the graph": "XLA 的时间与计算图的时间相比",
    "100 rows in bfloat16": "100 行，bfloat16",
    "64 rows in float32": "64 行，float32",
    # Fine-tuning.
    "update of a classifier on 16x128": "更新一次分类器，16x128",
    "dropout and AdamW included": "包括 dropout 和 AdamW",
    "the same in bfloat16, which bert4keras lacks": (
        "同上，bfloat16（bert4keras 没有）"
    ),
    "an epoch of 320 reviews from strings": "从字符串开始训练一轮 320 条评论",
    "batches of 16": "批大小 16",
    "2.3x (2 turns: 2.27, 2.31)": "2.3 倍（2 次：2.27、2.31）",
    "4.8x (one turn)": "4.8 倍（一次）",
    "2.5x (one turn)": "2.5 倍（一次）",
    "the same epoch": "同一轮训练",
    "if bert4keras pads everything to 256": "bert4keras 全部填充到 256 时",
    "tokens of a review": "一条评论的 token 数",
    "without padding": "不填充",
    "in a batch of this package, sorted by length": "本包的批次，按长度排序",
    "in a batch of bert4keras": "bert4keras 的批次",
    "a training step of the base model on one text of 2,048 tokens": (
        "base 模型用一条 2,048 个 token 的文本训练一步"
    ),
    "GB, weights and optimizer included": "GB，包括权重和优化器",
    "as it is": "默认",
    "with gradient checkpointing, in about the same time": (
        "用梯度检查点，时间大致相同"
    ),
    # Long texts and pre-training.
    "one text; s and MB": "一条文本；s 和 MB",
    "engine keras": "Keras 引擎",
    "updates of `pretrain mlm` against those of the same compiled model on one batch "
    "in memory": "`pretrain mlm` 的更新，与同一个编译好的模型反复用一个批次的更新相比",
    "ratio (pairs)": "比值（各对的范围）",
    "save a state of the training": "保存一次训练状态",
    # Encoding in detail.
    "exported to SavedModel": "导出为 SavedModel",
    "exported to ONNX, on ONNX Runtime": "导出为 ONNX，用 ONNX Runtime 运行",
    "the same in 8-bit integers": "同上，8 位整数",
    "exported to OpenVINO": "导出为 OpenVINO",
    "bfloat16 or integers": "bfloat16 或整数",
    "exported to OpenVINO in 8-bit integers": "导出为 OpenVINO，8 位整数",
    "run": "一次测量",
    "share of the products": "占矩阵乘法的比例",
    "against Hugging Face's BERT in bfloat16": "与 Hugging Face 的 BERT 相比，bfloat16",
    "that of the table above": "上面的表",
    "a third faster": "快三分之一",
    "a run with 5 turns and fewer programs": "5 轮，程序较少",
    "5 % faster": "快 5 %",
    "an earlier run that day": "同一天更早的一次",
    "on Zen 4": "Zen 4",
    "goal that was not reached": "没有达到的目标",
    "92 % of the products in float32": "float32 达到矩阵乘法的 92 %",
    "1.15 times Hugging Face's bfloat16 in every run": (
        "每次都是 Hugging Face 的 bfloat16 的 1.15 倍"
    ),
    "1.05 times in two of three": "三次中有两次是 1.05 倍",
    "ONNX's integers 1.3 times as fast as our bfloat16": (
        "ONNX 的整数是本包 bfloat16 的 1.3 倍"
    ),
    "20 ms for a sentence on TensorFlow": "TensorFlow 上一句话 20 ms",
    "largest difference": "最大差异",
    "mean": "平均",
    "smallest cosine": "最小余弦",
    "mean cosine": "平均余弦",
    "8-bit integers": "8 位整数",
    "calibrated on 100 other texts": "用另外 100 条文本校准",
    "two different texts, both in float32": "两条不同的文本，都用 float32",
    "0.35 (median)": "0.35（中位数）",
    "time that is lost without": "不用时多花的时间",
    "matrix products that TensorFlow fuses with bias, GELU, residual and mask": (
        "TensorFlow 把矩阵乘法与偏置、GELU、残差和掩码融合"
    ),
    "the norm as one oneDNN operation": "归一化作为一个 oneDNN 算子",
    "rows x tokens": "行数 x token 数",
    "graph": "计算图",
    # Linear attention.
    "causal": "因果",
    "peak": "峰值",
    "slope from 512 to 65,536 tokens": "512 至 65,536 个 token 的斜率",
    "time": "时间",
    "two base layers on 65,536 tokens, libraries included": (
        "两个 base 层，65,536 个 token，包括各个库"
    ),
    "standard deviation of queries and keys": "query 和 key 的标准差",
    # Jobs of many processes, loaders, scripts.
    "ms of a core for each text": "每条文本占一个核的 ms",
    "start": "启动",
    "one process": "一个进程",
    "both cores": "两个核",
    "1 worker of one core": "1 个进程，一个核",
    "2 workers of one core each": "2 个进程，各一个核",
    "workers": "进程数",
    "share of what the model alone would do": "占模型单独运行时的比例",
    "extra time of each row": "每行多出的时间",
    "median": "中位数",
    "smallest to largest": "最小到最大",
    "first batch": "第一个批次",
    "script": "脚本",
    "here": "本包",
    "once more": "再运行一次",
}
# Names and units, which stay.
KEPT = {
    *("AMD", "AMX", "BERT", "EPYC", "Face", "FastAPI", "GB", "GPT", "Grain", "Hugging"),
    *("Keras-Hub", "MB", "ONNX", "OpenVINO", "RoFormer", "Runtime", "Sim", "XLA"),
    *("TensorFlow", "Zen", "bert4keras", "bfloat16", "float32", "ms", "tokens/s"),
    *("cosine", "faiss", "linear", "numpy", "performer", "softmax"),
    "sentence_transformers",
    *("roformer_keras", "transformers"),
}
_RULES = (
    (r"(\d[\d,.]*)x \((\S+) to (\S+)\)", r"\1 倍（\2 至 \3）"),
    (
        r"(\d[\d,.]*) to (\d[\d,.]*)( times)?",
        lambda m: f"{m[1]} 至 {m[2]}" + " 倍" * bool(m[3]),
    ),
    (r"(\d[\d,.]*)(?: times|x)", r"\1 倍"),
    (r"([\d,]+) tokens?", r"\1 个 token"),
    (r"([\d,]+) texts? of (\d+) tokens", r"\1 条 \2 个 token 的文本"),
    (r"([\d,]+) texts?", r"\1 条文本"),
    (r"([\d,]+) features", r"\1 个特征"),
    (r"(\d+) threads?", r"\1 个线程"),
    (r"(\d+) process(?:es)?", r"\1 个进程"),
)
_MARKS = {", ": "，", "; ": "；", ": ": "："}
# Not those within code.
_BETWEEN = re.compile("(, |; |: )(?=(?:[^`]*`[^`]*`)*[^`]*$)")


def table(text: str) -> str:
    """A table in Markdown, with its cells in Chinese."""
    lines = []
    for line in text.splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        lines.append(f"|{'|'.join(f' {translated(cell.strip())} ' for cell in cells)}|")
    return "\n".join(lines)


def origin(
    days: Iterable[datetime.date],
    machines: Iterable[str],
    command: str | None,
    commit: str | None,
) -> str:
    """When, on what and by which command figures were measured."""
    when = "至 ".join(f"{day.year} 年 {day.month} 月 {day.day} 日" for day in days)
    where = "；".join(
        re.sub(r"^(\d+) cores of (.*)$", r"\2，\1 核", m) for m in machines
    )
    how = f"：`{command}`" if command else "，手工测量"
    return f"{when}，{where}{how}" + (f"，commit `{commit}`" if commit else "")


def translated(cell: str) -> str:
    """A cell of a table in Chinese.

    Raises:
        ConfigurationError: a word of it is not known.
    """
    pieces = _BETWEEN.split(cell)
    if cell in WORDS or len(pieces) == 1:
        return _translated_piece(cell)
    # Pieces that belong together.
    for count in range(len(pieces) - 2, 0, -2):
        if (head := "".join(pieces[:count])) in WORDS and count > 1:
            pieces[:count] = [head]
            break
    pieces[::2] = map(_translated_piece, pieces[::2])
    if not all(re.fullmatch(r"[\d,.]+", piece) for piece in pieces[::2]):
        pieces[1::2] = [_MARKS[mark] for mark in pieces[1::2]]
    return "".join(pieces)


def _translated_piece(piece):
    if piece in WORDS:
        return WORDS[piece]
    for pattern, chinese in _RULES:
        if re.fullmatch(pattern, piece):
            return re.sub(pattern, chinese, piece)
    bare = re.sub(r"`[^`]+`", " ", piece)
    unknown = {*re.findall(r"(?<!\w)[A-Za-z][\w/-]+", bare)} - KEPT
    if unknown:
        raise ConfigurationError(
            f"tools/benchmarks/chinese.py has no Chinese for {piece!r}, a cell of a "
            "table of figures"
        )
    return piece
