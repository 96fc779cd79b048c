"""Regenerates tests/data/generation: what the real bert4keras's logits lead to.

    python tools/write_generation_reference.py

It starts itself again in a process with bert4keras (`.reference/bert4keras-0.11.5`, or
ROFORMER_KERAS_REFERENCE), and there decodes without a cache: every step is a forward
pass of bert4keras's model over one whole prompt and what it led to, no padding. Greedy
and beam search are written here, plainly; `beam_search` and `random_sample` are
bert4keras's own.

golden.json holds `versions` and `models`, by name:

    source, kwargs     stem in tests/checkpoints; keywords of build_transformer_model
    sharpened          null, or how `sharpen` changed the weights
    greedy, beam       `prompts`, and `cases`: options (stop_ids, min_length,
                       max_length, num_beams, length_penalty) and `outputs`, for each
                       prompt the new ids with their score; of beams all, best first
    steps              indices of prompts whose logits at every step of the first greedy
                       case are in logits.npz as `<model>/<index>`, float32
                       `(step, column)`
    beam_search        200 prompts, and what bert4keras's beam_search returns for them
    samples            counts of the first token in 10,000 draws of its random_sample

No choice in greedy and beam search is closer than `MARGIN`, so that rounding does not
change a token; prompts for which one was are not used.
"""

import importlib.metadata
import json
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from golden import write_with_bert4keras

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = ROOT / "tests" / "checkpoints"
OUTPUT = ROOT / "tests" / "data" / "generation"

CLS, SEP = 101, 102
FIRST_TEXT_ID = 104
# A sum of 30 float32 log-probabilities is good to a few 1e-5.
MARGIN = 5e-5
LENGTHS = (2, 3, 5, 8, 9, 12, 17, 23, 27, 30)
# Of these tiny models long texts go in circles, and beams that leave them one round
# sooner or later are equally good: beams are shorter.
BEAM_LENGTHS = (4, 7, 9, 10, 12, 14, 16, 17)
# A prompt of that many tokens has zeros at these positions.
ZEROS = {9: [4], 17: [6, 7]}
DRAWS = 10_000
# Logits are stored for every tenth token.
COLUMN_STEP = 10

_LM = {"model": "roformer", "application": "lm", "with_mlm": "linear"}
_SIM = {
    "model": "roformer",
    "application": "unilm",
    "with_pool": "linear",
    "with_mlm": "linear",
}
_GPT_STEM = "chinese_roformer-gpt-char_L-2_H-32_A-4"
_SIM_STEM = "chinese_roformer-sim-char_L-2_H-32_A-4"
_V2_STEM = "chinese_roformer-v2-char_L-2_H-32_A-4"


def _sharpening(sep, pad):
    return {"kernels": 2, "head_norm": 10, "bias": {str(SEP): sep, "0": pad}}


# name: stem, kwargs, sharpening
MODELS = {
    "gpt": (_GPT_STEM, _LM, None),
    "gpt-sharp": (_GPT_STEM, _LM, _sharpening(sep=4.0, pad=3.0)),
    "sim": (_SIM_STEM, _SIM, None),
    "sim-sharp": (_SIM_STEM, _SIM, _sharpening(sep=1.5, pad=1.0)),
    "v2": (_V2_STEM, {**_LM, "model": "roformer_v2"}, None),
}
# The random weights give flat distributions: a low temperature sharpens them.
SAMPLING = (
    {"top_k": 5, "temperature": 1.0},
    {"top_k": 5, "temperature": 0.2},
    {"top_p": 0.8, "temperature": 0.1},
    {"top_k": 20, "top_p": 0.7, "temperature": 0.1},
    {"top_p": 0.9, "temperature": 0.07},
)


# --- the model ------------------------------------------------------------------------


def sharpen(model, factors):
    """Makes a model of random weights depend on its input, and be sure of its output.

    Kernels and the norm of the MLM head are multiplied, biases of tokens are added to.
    """
    for weight in model.weights:
        name = weight.name.split(":")[0]
        if name.endswith("/kernel"):
            weight.assign(factors["kernels"] * weight)
        elif name.startswith("MLM-Norm/"):
            weight.assign(factors["head_norm"] * weight)
        elif name == "MLM-Bias/beta":
            values = weight.numpy()
            for token, bias in factors["bias"].items():
                values[int(token)] += bias
            weight.assign(values)


class Reference:
    """bert4keras's model, and next-token logits from it."""

    def __init__(self, name, folder):
        import tensorflow as tf
        from bert4keras.models import build_transformer_model

        self.stem, self.kwargs, self.sharpened = MODELS[name]
        with zipfile.ZipFile(CHECKPOINTS / f"{self.stem}.zip") as archive:
            archive.extractall(folder)
        path = folder / self.stem
        self.model = build_transformer_model(
            str(path / "bert_config.json"),
            str(path / "bert_model.ckpt"),
            **self.kwargs,
        )
        if self.sharpened:
            sharpen(self.model, self.sharpened)
        self.unilm = self.kwargs["application"] == "unilm"
        self.vocabulary_size = self.model.outputs[-1].shape[-1]
        ids = tf.TensorSpec((None, None), "int32")
        self.forward = tf.function(self.last_logits, input_signature=[ids, ids])
        self.known = {}

    def logits(self, prompts, written):
        """Of the token after each row, `(rows, V)`.

        Args:
            prompts: int `(rows, prompt length)`.
            written: int `(rows, steps)`; segment 1 under UniLM.
        """
        token_ids = np.concatenate([prompts, written], axis=1).astype("int32")
        segment_ids = np.zeros_like(token_ids)
        if self.unilm:
            segment_ids[:, prompts.shape[1] :] = 1
        return self.forward(token_ids, segment_ids).numpy()

    def last_logits(self, token_ids, segment_ids):
        outputs = self.model([token_ids, segment_ids], training=False)
        return (outputs[-1] if isinstance(outputs, list) else outputs)[:, -1]

    def log_probabilities(self, prompt, written):
        """As `logits`, for one prompt; rows seen before are remembered."""
        keys = [(tuple(prompt), tuple(map(int, row))) for row in written]
        new = [i for i, key in enumerate(keys) if key not in self.known]
        if new:
            logits = self.logits(np.repeat([prompt], len(new), axis=0), written[new])
            shifted = logits - logits.max(-1, keepdims=True).astype("float64")
            values = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
            self.known.update(
                (keys[i], value) for i, value in zip(new, values, strict=True)
            )
        return np.array([self.known[key] for key in keys])

    def most_new(self, prompt, max_length):
        return max_length - (0 if self.unilm else len(prompt))

    def counted(self, prompt, new):
        """What min_length bounds."""
        return new + (0 if self.unilm else len(prompt))

    def decoder(self, **options):
        """bert4keras's AutoRegressiveDecoder over this model."""
        from bert4keras.snippets import AutoRegressiveDecoder

        class Decoder(AutoRegressiveDecoder):
            @AutoRegressiveDecoder.wraps(default_rtype="logits")
            def predict(decoder, inputs, output_ids, states):
                return self.logits(inputs[0], output_ids)

        return Decoder(start_id=None, **options)


# --- greedy and beam search, uncached -------------------------------------------------


def greedy(reference, prompt, stop_ids, min_length, max_length):
    """New ids, their score, the logits at each step, and the closest choice."""
    written, score, steps, margin = [], 0.0, [], np.inf
    for _ in range(reference.most_new(prompt, max_length)):
        new = np.int32([written])
        steps.append(reference.logits(np.int32([prompt]), new)[0])
        scores = reference.log_probabilities(prompt, new)[0]
        choice = scores.copy()
        length = reference.counted(prompt, len(written) + 1)
        if length < min_length:
            choice[SEP] = -np.inf
        second, best = np.sort(choice)[-2:]
        margin = min(margin, best - second)
        token = int(choice.argmax())
        written.append(token)
        score += scores[token]
        if token in stop_ids and length >= min_length:
            break
    return written, score, np.array(steps), margin


def beam(
    reference, prompt, num_beams, length_penalty, stop_ids, min_length, max_length
):
    """The best `num_beams` new ids, their scores, and the closest choice.

    Nothing is found where a choice is closer than `MARGIN`.

    Never stops before max_length: what that costs in time it saves in reasons why the
    beams that are left cannot win any more.
    """
    live, finished, margin = [([], 0.0)], [], np.inf
    for step in range(1, reference.most_new(prompt, max_length) + 1):
        rows = np.array([ids for ids, _ in live], "int32").reshape(len(live), -1)
        scores = reference.log_probabilities(prompt, rows)
        length = reference.counted(prompt, step)
        if length < min_length:
            scores[:, SEP] = -np.inf
        scores += np.array([[score] for _, score in live])
        order = np.argsort(-scores, axis=None)[: 3 * num_beams]
        candidates = [
            (live[row][0] + [int(token)], scores[row, token])
            for row, token in zip(*np.unravel_index(order, scores.shape), strict=True)
        ]
        ends = [ids[-1] in stop_ids and length >= min_length for ids, _ in candidates]
        # A stop token on either side of the cut might be seen or not.
        cut = 2 * num_beams
        if ends[cut - 1] or ends[cut]:
            margin = min(margin, candidates[cut - 1][1] - candidates[cut][1])
        going_on = []
        for (ids, score), end in zip(candidates[:cut], ends[:cut], strict=True):
            if end:
                finished.append((ids, score / step**length_penalty))
            else:
                going_on.append((ids, score))
        if len(going_on) < num_beams:
            # How many should go on then is a matter of taste.
            return [], [], 0.0
        others = [c for c, end in zip(candidates, ends, strict=True) if not end]
        if len(others) > num_beams:
            margin = min(margin, others[num_beams - 1][1] - others[num_beams][1])
        live = going_on[:num_beams]
        if margin < MARGIN:
            return [], [], margin
    finished += [(ids, score / step**length_penalty) for ids, score in live]
    finished.sort(key=lambda pair: -pair[1])
    texts, best = zip(*finished[: num_beams + 1], strict=True)
    margin = min(margin, *(-np.diff(best)), np.inf)
    return texts[:num_beams], best[:num_beams], margin


# --- what is stored -------------------------------------------------------------------


def random_prompt(reference, length, rng):
    ids = rng.integers(FIRST_TEXT_ID, reference.vocabulary_size, length)
    ids[0] = CLS
    if reference.unilm:
        ids[-1] = SEP
    return [int(i) for i in ids]


def slot_prompt(reference, length, rng):
    """A prompt of `length` tokens; a text of one at least."""
    prompt = random_prompt(reference, max(length, 2 + reference.unilm), rng)
    for position in ZEROS.get(length, ()):
        prompt[position] = 0
    return prompt


def choose_stop_ids(outputs):
    """The three tokens that would end the rows at the most different times."""

    def ends(token):
        return len({row.index(token) for row in outputs if token in row[:-1]})

    known = {token for row in outputs for token in row} - {0, SEP}
    return sorted(known, key=lambda token: (-ends(token), token))[:3]


def greedy_cases(reference, several):
    most = 32 if reference.unilm else 36
    common = {"min_length": 0, "max_length": most}
    return [
        # [SEP] is put off to the end, so that every row has all its steps.
        {**common, "stop_ids": [SEP], "min_length": most},
        {**common, "stop_ids": several[:1]},
        {**common, "stop_ids": [SEP, *several]},
        {
            **common,
            "stop_ids": [SEP, *several],
            "min_length": 12 if reference.unilm else 20,
        },
    ]


def beam_cases(reference, stop):
    common = {"min_length": 0, "max_length": 17 if reference.unilm else 22}
    found = [
        {
            **common,
            "num_beams": beams,
            "length_penalty": penalty,
            "stop_ids": [SEP] if beams == 1 else [SEP, stop],
        }
        for beams in (1, 3, 5)
        for penalty in (0.0, 1.0)
    ]
    found.append({**found[3], "length_penalty": 0.6, "stop_ids": [stop]})
    # [SEP] is put off here, the other is written and passed over.
    found.append({**found[3], "min_length": 8 if reference.unilm else 15})
    return found


def decoded(reference, search, lengths, options, rng):
    """A prompt of each length with what is found for it, and the logits if greedy.

    Args:
        search: `greedy` or `beam`.
        lengths: of the prompts.
        options: of each case.
    """
    prompts, outputs, logits, dropped = [], [], [], 0
    while len(prompts) < len(lengths):
        prompt = slot_prompt(reference, lengths[len(prompts)], rng)
        reference.known.clear()
        found = []
        for case in options:
            *result, margin = search(reference, prompt, **case)
            if margin < MARGIN:
                dropped += 1
                break
            found.append(result)
        else:
            prompts.append(prompt)
            outputs.append([stored(*result[:2]) for result in found])
            logits.append(found[0][2] if search is greedy else None)
    print(f"  {search.__name__}: {dropped} prompts were too close", flush=True)
    cases = [
        {**case, "outputs": list(column)}
        for case, column in zip(options, zip(*outputs, strict=True), strict=True)
    ]
    return {"prompts": prompts, "cases": cases}, logits


def stored(ids, score):
    return {"ids": ids, "score": np.round(score, 6).tolist()}


def beam_searched(reference, stop, rng, count=200, num_beams=4):
    """What bert4keras's own beam_search returns, and its summed log-probability."""
    limit = 12 if reference.unilm else 20
    prompts, outputs = [], []
    for _ in range(count):
        prompt = random_prompt(reference, int(rng.integers(4, 13)), rng)
        reference.known.clear()
        most = limit if reference.unilm else limit - len(prompt)
        decoder = reference.decoder(end_id=stop, maxlen=most)
        ids = decoder.beam_search([prompt], topk=num_beams)
        score = sum(
            reference.log_probabilities(prompt, ids[None, :step])[0, token]
            for step, token in enumerate(ids)
        )
        prompts.append(prompt)
        outputs.append({"ids": [int(i) for i in ids], "score": round(score, 6)})
    ended = sum(output["ids"][-1] == stop for output in outputs)
    print(f"  beam_search: {ended} of {count} ended", flush=True)
    return {
        "num_beams": num_beams,
        "stop_ids": [stop],
        "max_length": limit,
        "prompts": prompts,
        "outputs": outputs,
    }


def sampled(reference, rng, seed):
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


def write(output):
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    golden = {
        "versions": {
            "bert4keras": importlib.metadata.version("bert4keras"),
            "tensorflow": tf.__version__,
            "tf_keras": importlib.metadata.version("tf_keras"),
            "numpy": np.__version__,
        },
        "layer_norm_epsilon": 1e-7,
        "margin": MARGIN,
        "column_step": COLUMN_STEP,
        "models": {},
    }
    arrays = {}
    for seed, name in enumerate(MODELS):
        print(name, flush=True)
        rng = np.random.default_rng(seed)
        with tempfile.TemporaryDirectory() as scratch:
            reference = Reference(name, Path(scratch))
        # Twice with the same random numbers: the second time with stop tokens that the
        # first has shown to be met.
        whole = greedy_cases(reference, [])[:1]
        trial, _ = decoded(
            reference, greedy, LENGTHS, whole, np.random.default_rng([seed, 1])
        )
        several = choose_stop_ids([row["ids"] for row in trial["cases"][0]["outputs"]])
        stop = several[0]
        found, logits = decoded(
            reference,
            greedy,
            LENGTHS,
            greedy_cases(reference, several),
            np.random.default_rng([seed, 1]),
        )
        beams, _ = decoded(
            reference, beam, BEAM_LENGTHS, beam_cases(reference, stop), rng
        )
        # The shortest prompt, the two with zeros, and the longest but two.
        steps = [0, 4, 6, 7]
        for i in steps:
            arrays[f"{name}/{i}"] = logits[i][:, ::COLUMN_STEP].astype("float32")
        golden["models"][name] = {
            "source": reference.stem,
            "kwargs": reference.kwargs,
            "sharpened": reference.sharpened,
            "greedy": found,
            "beam": beams,
            "steps": steps,
            "beam_search": beam_searched(reference, stop, rng),
            "samples": sampled(reference, rng, 100 * seed),
        }
    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(golden, separators=(",", ":"))
    # One model, prompt or case a line is enough for a reader and for a diff.
    (output / "golden.json").write_text(text.replace(',{"', ',\n{"') + "\n")
    np.savez_compressed(output / "logits.npz", **arrays)


if __name__ == "__main__":
    write_with_bert4keras(__file__, __doc__, OUTPUT, write)
