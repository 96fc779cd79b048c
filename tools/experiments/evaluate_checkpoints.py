"""Evaluates a trained checkpoint on held-out texts, compared with baselines.

    python -m tools.experiments.evaluate_checkpoints sim roformer-sim-char.zip \\
        --config sim.toml --names classical modern

The configuration comes from the training: its `data` say which records are held out,
its last stage how long a text is. Baselines learn from the training part. Books quote
each other, so held-out texts that are in the training part, as a whole or with half of
their runs of six characters, are left out.

mlm  Accuracy at masked positions: 15 % of the tokens of each text. Baselines: the most
     frequent token, with and without punctuation; bigrams with the left neighbour;
     trigrams with both. A hidden neighbour is hidden from them too.
lm   Perplexity of a token, including the final [SEP]; longer texts than in training are
     cut. Baselines: n-grams over the same vocabulary.
sim  Recall@1 and @10 of the other text of a pair among 1,000 texts, by cosine, in both
     directions. Baselines: chance, shared characters (Jaccard), TF-IDF of characters,
     and of characters and their pairs. And BLEU by characters of the texts that the
     model generates for 500 of them, compared with copying.
"""

import math
import sys
import unicodedata
from pathlib import Path

import numpy as np
import sacrebleu
import scipy.special
from tqdm import tqdm

from roformer_keras.base.checks import check_integer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.tables.corpus import read_corpus
from roformer_keras.training.pretraining_settings import PretrainingSettings
from tools.commands import Parser, command
from tools.experiments import baselines
from tools.tables import markdown, write_json

MASKED_SHARE = 0.15
CANDIDATES, GENERATED, GENERATED_TOGETHER = 1000, 500, 256
SEED = 0


@command
def main(arguments=None):
    parser = Parser(__doc__)
    add = parser.add_argument
    add("task", choices=TASKS)
    add("checkpoint", help="zip, or another source of from_preset")
    add("--config", required=True, help="TOML file of the training")
    add("--limit", type=int, help="held-out texts or pairs, drawn; default: all")
    names = ("first", "second")
    add("--names", nargs=2, default=names, help="sim: of the two texts of a pair")
    add("--num-beams", type=int, default=4, help="sim: of generation; 1 is greedy")
    add("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    if options.limit is not None:
        check_integer("limit", options.limit, 1)
    tables = []
    for columns, rows, note in TASKS[options.task](options):
        lines = [
            [name, *map(format, figures, columns.values())]
            for name, figures in rows.items()
        ]
        print(f"\n{markdown(['model', *columns], lines)}\n\n{note}", flush=True)
        tables.append({"rows": rows, "note": note})
    if options.json:
        write_json(options.json, {"task": options.task, "tables": tables})


def evaluate_mlm(options):
    from roformer_keras.text.encoders import DocumentEncoder

    model = load("RoFormerMaskedLM", options.checkpoint)
    tokenizer = model.tokenizer
    settings = PretrainingSettings.from_toml(options.config)
    encode = DocumentEncoder(tokenizer, settings.stages[-1].length)

    def rows_of(record):
        for item in encode(record):
            (ids,) = item.ids
            yield np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], "int32")

    train, texts, dropped = token_rows(settings, rows_of, options)
    hidden, masked = mask(texts, tokenizer.mask_id)
    targets = np.concatenate([text[at] for text, at in zip(texts, hidden, strict=True)])
    neighbours = baselines.Neighbours(baselines.Texts(train), tokenizer.vocabulary_size)
    marks = np.array([is_punctuation(token) for token in tokenizer.vocabulary])
    most_frequent = int(neighbours.frequency.argmax())
    no_mark = int(np.where(marks, -1, neighbours.frequency).argmax())
    left, both = baselines.guess(neighbours, masked, hidden, tokenizer.mask_id)
    predictions = {
        Path(options.checkpoint).stem: model_guesses(model, masked, hidden),
        f"most frequent token ({tokenizer.id_to_token(most_frequent)})": most_frequent,
        f"most frequent character ({tokenizer.id_to_token(no_mark)})": no_mark,
        "bigrams, left neighbour": left,
        "trigrams, both neighbours": both,
    }
    is_character = ~marks[targets]
    rows = {
        name: [float(hits.mean()), float(hits[is_character].mean())]
        for name, hits in ((n, found == targets) for n, found in predictions.items())
    }
    note = (
        f"Accuracy at {len(targets):,} masked positions ({MASKED_SHARE:.0%} of each "
        f"text, all replaced by [MASK]) of {len(texts):,} held-out texts of at most "
        f"{settings.stages[-1].length} tokens, each alone; {left_out(dropped)}. "
        f"{is_character.mean():.1%} of the targets are not punctuation; "
        f"{share_of(targets, tokenizer.unk_id)} are [UNK], which counts as a token. "
        f"The baselines learned from {sum(map(len, train)):,} tokens."
    )
    columns = {"accuracy": ".1%", "without punctuation": ".1%"}
    yield columns, rows, note


def evaluate_lm(options):
    model = load("RoFormerCausalLM", options.checkpoint)
    tokenizer = model.tokenizer
    settings = PretrainingSettings.from_toml(options.config)
    length = settings.stages[-1].length

    def rows_of(record):
        for text in record:
            yield np.array(tokenizer.encode(text)[0], "int32")

    train, whole, dropped = token_rows(settings, rows_of, options)
    texts = [text[:length] for text in whole]
    targets = np.concatenate([text[1:] for text in texts])
    by_model = {Path(options.checkpoint).stem: model_log_probabilities(model, texts)}
    corpus, held_out = baselines.Texts(train), baselines.Texts(texts)
    for order, name in enumerate(("unigrams", "bigrams", "trigrams"), start=1):
        ngrams = baselines.KneserNey(corpus, order, tokenizer.vocabulary_size)
        by_model[name] = ngrams.log_probabilities(held_out)
    cut = np.mean([len(text) > length for text in whole])
    rows = {}
    for name, log_probabilities in by_model.items():
        mean = -float(log_probabilities.mean())
        rows[name] = [math.exp(mean), mean / math.log(2)]
    note = (
        f"Over {len(targets):,} tokens, [SEP] included, of {len(texts):,} held-out "
        f"texts; {left_out(dropped)}. Texts longer than {length} tokens, {cut:.1%}, "
        f"are cut. {share_of(targets, tokenizer.unk_id)} of the targets are [UNK], "
        "which counts as a token. N-grams: interpolated modified Kneser-Ney, from "
        f"{corpus.tokens.size:,} tokens, over the same vocabulary of "
        f"{tokenizer.vocabulary_size:,}."
    )
    yield {"perplexity": ".1f", "bits a token": ".2f"}, rows, note


def evaluate_sim(options):
    settings = PretrainingSettings.from_toml(options.config)
    length = settings.stages[-1].length
    pairs, train, dropped = held_out_pairs(settings, options)
    model = load("RoFormerSim", options.checkpoint)
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    source, target = options.names
    ways = (f"{source} → {target}", f"{target} → {source}")
    scores = {
        Path(options.checkpoint).stem: model.encode(first, max_length=length)
        @ model.encode(second, max_length=length).T,
        "chance": np.zeros((len(pairs), len(pairs))),
        "common characters (Jaccard)": baselines.jaccard(first, second),
        "TF-IDF of characters": baselines.tf_idf(train, first, second, 1),
        "TF-IDF of characters and their pairs": baselines.tf_idf(
            train, first, second, 2
        ),
    }
    recalls = {
        name: [recall(m, k) for m in (matrix, matrix.T) for k in (1, 10)]
        for name, matrix in scores.items()
    }
    yield (
        {f"{way}, recall@{k}": ".1%" for way in ways for k in (1, 10)},
        recalls,
        f"Of {len(pairs):,} held-out pairs, each text among the {len(pairs):,} of the "
        f"other side; {left_out(dropped)}, or because a text is in another pair. IDF "
        f"from {len(train):,} texts of the training part.",
    )
    first, second = first[:GENERATED], second[:GENERATED]
    writes = f"{Path(options.checkpoint).stem}, {options.num_beams} beams"
    yield (
        {f"{way}, BLEU": ".1f" for way in ways},
        {
            writes: [
                bleu(counterparts(model, first, length, options.num_beams), second),
                bleu(counterparts(model, second, length, options.num_beams), first),
            ],
            "the input, copied": [bleu(first, second), bleu(second, first)],
        },
        f"{len(first):,} of these pairs; sacrebleu {sacrebleu.__version__}, "
        'tokenize="char".',
    )


TASKS = {"mlm": evaluate_mlm, "lm": evaluate_lm, "sim": evaluate_sim}


def records(settings, part):
    return tqdm(read_corpus(settings.data, part), desc=part, unit=" records")


def token_rows(settings, rows_of, options):
    """Rows of ids of training; held-out ones that it lacks; how many it has."""
    held_out, train = (
        [row for record in records(settings, part) for row in rows_of(record)]
        for part in ("held_out", "train")
    )
    # [CLS] and [SEP] alone are not a text.
    held_out = [row for row in held_out if len(row) > 2]
    seen = baselines.Seen(row[1:-1] for row in train)
    fresh = [row for row in held_out if not seen.knows(row[1:-1])]
    return train, draw(fresh, options), len(held_out) - len(fresh)


def held_out_pairs(settings, options):
    """Pairs without repeated texts, the texts of the training part, dropped pairs."""
    complete = [pair for pair in records(settings, "held_out") if all(pair)]
    train = [text for record in records(settings, "train") for text in record]
    seen, once = baselines.Seen(map(baselines.char_codes, train)), set()
    pairs = []
    for pair in complete:
        known = any(seen.knows(baselines.char_codes(text)) for text in pair)
        if once.isdisjoint(pair) and not known:
            pairs.append(pair)
        once.update(pair)
    return draw(pairs, options, CANDIDATES), train, len(complete) - len(pairs)


def left_out(dropped):
    return (
        f"{dropped:,} more are left out because the training part has them, or "
        f"{baselines.KNOWN_SHARE:.0%} of their runs of {baselines.RUN} characters"
    )


def draw(items, options, max_count=None):
    """At most `max_count` items, or `--limit`, in an order drawn from the seed."""
    if not items:
        raise ConfigurationError(
            "no held-out text is missing from the training part: raise holdout in "
            f"{options.config}, or name a group"
        )
    order = np.random.default_rng(SEED).permutation(len(items))
    return [items[i] for i in order[:max_count][: options.limit]]


def load(name, checkpoint):
    import roformer_keras

    return getattr(roformer_keras, name).from_preset(checkpoint, output_activation=None)


def is_punctuation(token):
    return len(token) == 1 and unicodedata.category(token)[0] in "PSZ"


def share_of(targets, token_id):
    return f"{np.mean(targets == token_id):.2%}"


def mask(texts, mask_id):
    """Positions in each text, not the first or last, and the texts with masks there."""
    hidden, masked = [], []
    for number, text in enumerate(texts):
        random = np.random.default_rng([SEED, number])
        count = max(1, round(MASKED_SHARE * (len(text) - 2)))
        at = np.sort(random.choice(len(text) - 2, count, replace=False)) + 1
        changed = text.copy()
        changed[at] = mask_id
        hidden.append(at)
        masked.append(changed)
    return hidden, masked


def logits_of(model, texts):
    """Yields the logits of each text, `(length, vocabulary_size)`."""
    for text in tqdm(texts, desc="model", unit=" texts"):
        inputs = {"token_ids": text[None], "segment_ids": np.zeros_like(text[None])}
        outputs = model.predict_on_batch(inputs)
        yield (outputs["logits"] if isinstance(outputs, dict) else outputs)[0]


def model_guesses(model, masked, hidden):
    """The most probable ids at the hidden positions of all texts."""
    pairs = zip(logits_of(model, masked), hidden, strict=True)
    return np.concatenate([logits[at].argmax(axis=-1) for logits, at in pairs])


def model_log_probabilities(model, texts):
    """Natural logarithms, of each token except the first of each text."""
    log_probabilities = []
    for text, logits in zip(texts, logits_of(model, texts), strict=True):
        logits, targets = logits[:-1].astype("float64"), text[1:]
        of_targets = logits[np.arange(len(targets)), targets]
        log_probabilities.append(of_targets - scipy.special.logsumexp(logits, axis=-1))
    return np.concatenate(log_probabilities)


def counterparts(model, texts, length, num_beams):
    """The text that the model generates for each text."""
    tokenizer = model.tokenizer
    options = {"method": "beam", "num_beams": num_beams}
    if num_beams == 1:
        options = {"method": "greedy"}
    # Ids can be cut, unlike texts.
    prompts = [tokenizer.encode(text, max_length=length)[0] for text in texts]
    written = model.generate(
        prompts, max_new_tokens=length, batch_size=GENERATED_TOGETHER, **options
    )
    return [tokenizer.decode(ids) for ids in written]


def recall(scores, k):
    """Share of rows i whose column i is among their k highest; ties share places."""
    matching = np.diag(scores)[:, None]
    better, equal = (scores > matching).sum(axis=1), (scores == matching).sum(axis=1)
    return float(np.clip((k - better) / equal, 0, 1).mean())


def bleu(written, expected):
    return sacrebleu.corpus_bleu(written, [expected], tokenize="char").score


if __name__ == "__main__":
    sys.exit(main())
