"""tests/data/generation: texts that follow from the logits of the real bert4keras.

No cache: every step is a forward pass of bert4keras's model over a whole prompt and its
continuation. Greedy and beam search are written here, plainly.

golden.json holds `models`, by name: `source`, stem in tests/checkpoints; `kwargs` of
build_transformer_model; `sharpened`, how the weights were changed; `greedy` and `beam`,
`prompts` and `cases` with `outputs`, the new ids and their score for each prompt, all
beams, the best first; `steps`, indices of the prompts whose logits at every step of the
first greedy case are in logits.npz as `MODEL/INDEX`; `beam_search`, what bert4keras's
returns for 200 prompts; `samples`, of two models, counts of the first token in 10,000
draws.

Prompts are left out if a choice of greedy or beam search is closer than `MARGIN`, so
that rounding does not change a token.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from tools.reference.bert4keras import build_model, unzip, versions

CLS, SEP = 101, 102
FIRST_TEXT_ID = 104
# A sum of 30 float32 log-probabilities is accurate to a few 1e-5.
MARGIN = 5e-5
LENGTHS = (2, 3, 5, 8, 9, 12, 17, 23, 27, 30)
# Long texts of these tiny models repeat themselves, and beams that leave the loop a
# round earlier or later are equally good: prompts of beam search are shorter.
BEAM_LENGTHS = (4, 7, 9, 10, 12, 14, 16, 17)
# Length of a prompt -> positions of its zeros.
ZEROS = {9: [4], 17: [6, 7]}
DRAWS = 10_000
# Logits are stored for every tenth token.
COLUMN_STEP = 10
# Indices of the shortest prompt, of the two with zeros, and of a long one.
STORED_STEPS = [0, 4, 6, 7]

_MLM = {"with_mlm": "linear"}
_LM = {"model": "roformer", "application": "lm", **_MLM}
_SIM = {"model": "roformer", "application": "unilm", "with_pool": "linear", **_MLM}
_GPT_STEM = "chinese_roformer-gpt-char_L-2_H-32_A-4"
_SIM_STEM = "chinese_roformer-sim-char_L-2_H-32_A-4"
_V2_STEM = "chinese_roformer-v2-char_L-2_H-32_A-4"


def _sharpening(sep, pad):
    return {"kernels": 2, "head_norm": 10, "bias": {str(SEP): sep, "0": pad}}


# name -> stem, keywords, sharpening
MODELS = {
    "gpt": (_GPT_STEM, _LM, None),
    "gpt-sharp": (_GPT_STEM, _LM, _sharpening(sep=4.0, pad=3.0)),
    "sim": (_SIM_STEM, _SIM, None),
    "sim-sharp": (_SIM_STEM, _SIM, _sharpening(sep=1.5, pad=1.0)),
    "v2": (_V2_STEM, {**_LM, "model": "roformer_v2"}, None),
}
# A draw depends on the logits alone, which are stored for all models.
SAMPLED = ("gpt", "sim-sharp")
# The random weights give flat distributions, which low temperatures sharpen.
SAMPLING = (
    {"top_k": 5, "temperature": 1.0},
    {"top_k": 5, "temperature": 0.2},
    {"top_p": 0.8, "temperature": 0.1},
    {"top_k": 20, "top_p": 0.7, "temperature": 0.1},
    {"top_p": 0.9, "temperature": 0.07},
)


def write(output):
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    models, arrays = {}, {}
    for seed, name in enumerate(MODELS):
        models[name], logits = write_model(name, seed)
        for index in STORED_STEPS:
            stored = logits[index][:, ::COLUMN_STEP].astype("float32")
            arrays[f"{name}/{index}"] = stored
    golden = {
        "versions": {name.replace("-", "_"): x for name, x in versions().items()},
        "layer_norm_epsilon": 1e-7,
        "margin": MARGIN,
        "column_step": COLUMN_STEP,
        "models": models,
    }
    folder = output / "data" / "generation"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(golden, separators=(",", ":"))
    # One model, prompt or case in a line, for readers and diffs.
    (folder / "golden.json").write_text(text.replace(',{"', ',\n{"') + "\n")
    np.savez_compressed(folder / "logits.npz", **arrays)


def write_model(name, seed):
    """The stored values of a model, and the logits of its first greedy case."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as scratch:
        reference = Reference(name, Path(scratch))

    def search_greedily(stop_ids, count):
        cases = greedy_cases(reference, stop_ids)[:count]
        prompts_rng = np.random.default_rng([seed, 1])
        return search_prompts(reference, greedy, LENGTHS, cases, prompts_rng)

    # Twice with the same random numbers: the first search shows which tokens can stop
    # the texts of the second.
    trial, _ = search_greedily([], 1)
    stop_ids = choose_stop_ids([row["ids"] for row in trial["cases"][0]["outputs"]])
    greedy_search, logits = search_greedily(stop_ids, None)
    stop = stop_ids[0]
    beams, _ = search_prompts(
        reference, beam, BEAM_LENGTHS, beam_cases(reference, stop), rng
    )
    source, keywords, sharpened = MODELS[name]
    stored = {
        "source": source,
        "kwargs": keywords,
        "sharpened": sharpened,
        "greedy": greedy_search,
        "beam": beams,
        "steps": STORED_STEPS,
        "beam_search": search_with_bert4keras(reference, stop, rng),
        "samples": sample_with_bert4keras(reference, rng, 100 * seed)
        if name in SAMPLED
        else [],
    }
    return stored, logits


def sharpen(model, factors):
    """Makes a random model depend on its input, and certain of its output."""
    for weight in model.weights:
        name, value = weight.name.split(":")[0], weight.numpy()
        if name.endswith("/kernel"):
            value *= factors["kernels"]
        elif name.startswith("MLM-Norm/"):
            value *= factors["head_norm"]
        elif name == "MLM-Bias/beta":
            for token, bias in factors["bias"].items():
                value[int(token)] += bias
        weight.assign(value)


class Reference:
    """bert4keras's model and its logits of the next token."""

    def __init__(self, name, folder):
        import tensorflow as tf

        stem, keywords, self.sharpened = MODELS[name]
        self.model = build_model(unzip(stem, folder), **keywords)
        if self.sharpened:
            sharpen(self.model, self.sharpened)
        self.unilm = keywords["application"] == "unilm"
        self.vocabulary_size = self.model.outputs[-1].shape[-1]
        ids = tf.TensorSpec((None, None), "int32")
        self.forward = tf.function(self.last_logits, input_signature=[ids, ids])
        self.known = {}

    def last_logits(self, token_ids, segment_ids):
        outputs = self.model([token_ids, segment_ids], training=False)
        return (outputs[-1] if isinstance(outputs, list) else outputs)[:, -1]

    def logits(self, prompts, written):
        """Logits after prompts and what is written, which has segment 1 under UniLM."""
        token_ids = np.concatenate([prompts, written], axis=1).astype("int32")
        segment_ids = np.zeros_like(token_ids)
        if self.unilm:
            segment_ids[:, prompts.shape[1] :] = 1
        return self.forward(token_ids, segment_ids).numpy()

    def log_probabilities(self, prompt, written):
        """Log-probabilities after rows of one prompt; known rows are looked up."""
        keys = [(tuple(prompt), tuple(map(int, row))) for row in written]
        new = [i for i, key in enumerate(keys) if key not in self.known]
        if new:
            logits = self.logits(np.repeat([prompt], len(new), axis=0), written[new])
            logits = log_softmax(logits.astype("float64"), axis=-1)
            computed = zip(new, logits, strict=True)
            self.known.update((keys[i], values) for i, values in computed)
        return np.array([self.known[key] for key in keys])

    def counted(self, prompt):
        """The tokens of a prompt that lengths of texts count."""
        return 0 if self.unilm else len(prompt)

    def decoder(self, **options):
        """bert4keras's AutoRegressiveDecoder of this model."""
        from bert4keras.snippets import AutoRegressiveDecoder

        class Decoder(AutoRegressiveDecoder):
            @AutoRegressiveDecoder.wraps(default_rtype="logits")
            def predict(decoder, inputs, output_ids, states):
                return self.logits(inputs[0], output_ids)

        return Decoder(start_id=None, **options)


def greedy(reference, prompt, stop_ids, min_length, max_length):
    """New ids, their score, the closest choice, and the logits at each step."""
    written, score, steps, margin = [], 0.0, [], np.inf
    for length in range(reference.counted(prompt) + 1, max_length + 1):
        logits = reference.logits(np.int32([prompt]), np.int32([written]))
        steps.append(logits[0])
        (scores,) = log_softmax(logits.astype("float64"), axis=-1)
        choice = scores.copy()
        if length < min_length:
            choice[SEP] = -np.inf
        second, best = np.sort(choice)[-2:]
        margin = min(margin, best - second)
        token = int(choice.argmax())
        written.append(token)
        score += scores[token]
        if token in stop_ids and length >= min_length:
            break
    return written, score, margin, np.array(steps)


def beam(
    reference, prompt, num_beams, length_penalty, stop_ids, min_length, max_length
):
    """The best `num_beams` texts, their scores, the closest choice, and no logits.

    Gives up at a choice closer than `MARGIN`. Runs to max_length.
    """
    live, finished, margin = [([], 0.0)], [], np.inf
    counted = reference.counted(prompt)
    for step in range(1, max_length - counted + 1):
        rows = np.array([ids for ids, _ in live], "int32").reshape(len(live), -1)
        scores = reference.log_probabilities(prompt, rows)
        length = counted + step
        if length < min_length:
            scores[:, SEP] = -np.inf
        scores += np.array([[score] for _, score in live])
        order = np.argsort(-scores, axis=None)[: 3 * num_beams]
        candidates = [
            (live[row][0] + [int(token)], scores[row, token])
            for row, token in zip(*np.unravel_index(order, scores.shape), strict=True)
        ]
        ends = [ids[-1] in stop_ids and length >= min_length for ids, _ in candidates]
        # Rounding could move a stop token across the cut.
        cut = num_beams
        if ends[cut - 1] or ends[cut]:
            margin = min(margin, candidates[cut - 1][1] - candidates[cut][1])
        for (ids, score), end in zip(candidates[:cut], ends[:cut], strict=True):
            if end:
                finished.append((ids, score / step**length_penalty))
        others = [c for c, end in zip(candidates, ends, strict=True) if not end]
        if len(others) < num_beams:
            # Implementations differ in how many beams they continue with.
            return [], [], 0.0, None
        if len(others) > num_beams:
            margin = min(margin, others[num_beams - 1][1] - others[num_beams][1])
        live = others[:num_beams]
        if margin < MARGIN:
            return [], [], margin, None
    finished += [(ids, score / step**length_penalty) for ids, score in live]
    finished.sort(key=lambda pair: -pair[1])
    texts, best = zip(*finished[: num_beams + 1], strict=True)
    margin = min(margin, *(-np.diff(best)), np.inf)
    return texts[:num_beams], best[:num_beams], margin, None


def random_prompt(reference, length, rng):
    ids = rng.integers(FIRST_TEXT_ID, reference.vocabulary_size, length)
    ids[0] = CLS
    if reference.unilm:
        ids[-1] = SEP
    return [int(i) for i in ids]


def choose_stop_ids(outputs):
    """The three tokens that would end the rows at the most different steps."""

    def count_ends(token):
        return len({row.index(token) for row in outputs if token in row[:-1]})

    known = {token for row in outputs for token in row} - {0, SEP}
    return sorted(known, key=lambda token: (-count_ends(token), token))[:3]


def greedy_cases(reference, stop_ids):
    max_length, min_length = (32, 12) if reference.unilm else (36, 20)
    common = {"min_length": 0, "max_length": max_length}
    return [
        # [SEP] is suppressed to the end, so that every row has all its steps.
        {**common, "stop_ids": [SEP], "min_length": max_length},
        {**common, "stop_ids": stop_ids[:1]},
        {**common, "stop_ids": [SEP, *stop_ids]},
        {**common, "stop_ids": [SEP, *stop_ids], "min_length": min_length},
    ]


def beam_cases(reference, stop):
    common = {"min_length": 0, "max_length": 17 if reference.unilm else 22}
    cases = [
        {
            **common,
            "num_beams": beams,
            "length_penalty": penalty,
            "stop_ids": [SEP] if beams == 1 else [SEP, stop],
        }
        for beams in (1, 3, 5)
        for penalty in (0.0, 1.0)
    ]
    cases.append({**cases[3], "length_penalty": 0.6, "stop_ids": [stop]})
    # Until min_length [SEP] is suppressed, and the other stop token is written.
    cases.append({**cases[3], "min_length": 8 if reference.unilm else 15})
    return cases


def search_prompts(reference, search, lengths, cases, rng):
    """A prompt of each length with its outputs, and the logits of the first case."""
    prompts, outputs, logits = [], [], []
    while len(prompts) < len(lengths):
        length = lengths[len(prompts)]
        prompt = random_prompt(reference, max(length, 2 + reference.unilm), rng)
        for position in ZEROS.get(length, ()):
            prompt[position] = 0
        reference.known.clear()
        searched = []
        for case in cases:
            ids, score, margin, steps = search(reference, prompt, **case)
            if margin < MARGIN:
                break
            searched.append(({"ids": ids, "score": np.round(score, 6).tolist()}, steps))
        else:
            prompts.append(prompt)
            outputs.append([output for output, _ in searched])
            logits.append(searched[0][1])
    cases = [
        {**case, "outputs": list(column)}
        for case, column in zip(cases, zip(*outputs, strict=True), strict=True)
    ]
    return {"prompts": prompts, "cases": cases}, logits


def search_with_bert4keras(reference, stop, rng, count=200, num_beams=4):
    """The result of bert4keras's beam_search, and its summed log-probability."""
    limit = 12 if reference.unilm else 20
    prompts, outputs = [], []
    for _ in range(count):
        prompt = random_prompt(reference, int(rng.integers(4, 13)), rng)
        reference.known.clear()
        max_new = limit - reference.counted(prompt)
        decoder = reference.decoder(end_id=stop, maxlen=max_new)
        ids = decoder.beam_search([prompt], topk=num_beams)
        score = sum(
            reference.log_probabilities(prompt, ids[None, :step])[0, token]
            for step, token in enumerate(ids)
        )
        prompts.append(prompt)
        outputs.append({"ids": [int(i) for i in ids], "score": round(score, 6)})
    return {
        "num_beams": num_beams,
        "stop_ids": [stop],
        "max_length": limit,
        "prompts": prompts,
        "outputs": outputs,
    }


def sample_with_bert4keras(reference, rng, seed):
    """Counts of the first token that bert4keras's random_sample draws."""
    results = []
    for number, options in enumerate(SAMPLING):
        if reference.sharpened:
            options = {**options, "temperature": 10 * options["temperature"]}
        prompt = random_prompt(reference, 4, rng)
        np.random.seed(seed + number)
        rows = reference.decoder(end_id=SEP, maxlen=1).random_sample(
            [prompt],
            n=DRAWS,
            topk=options.get("top_k"),
            topp=options.get("top_p"),
            temperature=options["temperature"],
        )
        counts = Counter(int(row[0]) for row in rows)
        results.append({"prompt": prompt, **options, "counts": sorted(counts.items())})
    return results
