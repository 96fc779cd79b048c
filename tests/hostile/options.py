"""Numbers, names and settings: flags of commands, and TOML files of `finetune`."""

BIG = 10**30
COUNT = "must be an integer from 1 to 2147483647"
ROWS = {"t.tsv": "甲\t好\n乙\t坏\n丙\t好\n丁\t坏\n", "x": "今天\n"}
FINETUNE = "finetune text-classification -o run --source SMALL"
# Flags and values that a command must refuse, with the message.
_FLAGS = {
    "embed x": [
        ("--max-length 0", COUNT),
        ("--max-length -1", COUNT),
        (f"--max-length {BIG}", COUNT),
        (f"--max-length {'9' * 5000}", COUNT),
        ("--max-length 1e3", COUNT),
        ("--max-length nan", COUNT),
        ("--max-length ''", COUNT),
        ("--dtype int8", "invalid choice: 'int8'"),
        ("--dtype ''", "invalid choice: ''"),
        ("--output", "expected one argument"),
        ("-o x.npz", "must end in .npy or .jsonl"),
        ("-o .npy/", "the output must end in .npy or .jsonl, or be - for lines of"),
        ("-o ''", "must end in .npy or .jsonl"),
        ("--normalize", "unrecognized arguments: --normalize"),
        ("--no-normalize=3", "ignored explicit argument '3'"),
        ("--source", "expected one argument"),
        ("--colour red", "unrecognized arguments"),
    ],
    "embed x --engine ray -o out": [
        ("--num-workers 0", "must be an integer of at least 1, got 0"),
        ("--num-workers 1.5", "the value must be an integer"),
        ("--cpus-per-worker 0", "must be an integer of at least 1, got 0"),
        ("--gpus-per-worker -1", "of at least 0, got -1"),
        ("--gpus-per-worker nan", "must be a finite number"),
        ("--gpus-per-worker 1.5", "a whole number, or a part of one GPU, got 1.5"),
        ("--batch-tokens 0", "must be an integer of at least 1, got 0"),
        (f"--piece-rows -{BIG}", "must be an integer of at least 1, got -1"),
        ("--output-format csv", "invalid choice: 'csv'"),
        ("--on-bad-row skip", "invalid choice: 'skip'"),
        ("--fields a,b", "--fields must name 1 columns, got a, b"),
        ("--format bio", "the files must all be .parquet"),
    ],
    "tokenize 今": [
        ("--max-length 0", "max_length must be an integer of at least 1, got 0"),
        ("--max-length -5", "max_length must be an integer of at least 1, got -5"),
        ("--max-length 2.5", "the value must be an integer, got"),
        ("--max-length inf", "the value must be an integer, got"),
        ("--decode --max-length x", "the value must be an integer, got 'x'"),
        ("--decode", "must be integers between spaces"),
        (
            "--vocabulary ''",
            "cannot read the vocabulary : [Errno 21] Is a directory: '.'",
        ),
    ],
    "tokenize --decode": [
        ("-1", "token ids of this vocabulary are 0 to 5216, got -1"),
        ("' -1'", "are 0 to"),
        (f"{BIG}", "are 0 to"),
        ("9" * 5000, "ids to decode must be integers between spaces, got"),
        ("1.0", "must be integers between spaces"),
        ("0x10", "must be integers between spaces"),
        ("1,2", "must be integers between spaces"),
        ("NaN", "must be integers between spaces"),
        ("True", "must be integers between spaces"),
        ("'1 2 x'", "must be integers between spaces"),
        ("669000", "are 0 to"),
    ],
    "generate --text 今": [
        (f"--max-length {BIG}", COUNT),
        ("--max-length 0", COUNT),
        ("--max-new-tokens -3", COUNT),
        (f"--max-new-tokens {2**31}", COUNT),
        ("--min-length -1", "min_length must be an integer from 0 to 1048576, got -1"),
        (f"--min-length {BIG}", "min_length must be an integer from 0 to 1048576, got"),
        ("--min-new-tokens x", "the value must be an integer,"),
        ("--num-beams 0", "must be an integer from 1 to 1024"),
        (f"--num-beams {BIG}", "must be an integer from 1 to 1024"),
        ("--num-beams 1025", "must be an integer from 1 to 1024"),
        ("--num-return-sequences 0", "must be an integer from 1 to 1048576"),
        (f"--num-return-sequences {BIG}", "must be an integer from 1 to 1048576"),
        ("--temperature 0", "must be a finite number above 0"),
        ("--temperature -1", "must be a finite number above 0"),
        ("--temperature inf", "must be a finite number above 0"),
        ("--temperature 1e400", "must be a finite number above 0"),
        ("--temperature nan", "must be a finite number above 0"),
        ("--temperature ''", "must be a finite number above 0"),
        ("--top-k 0", "the value must be an integer of at least"),
        ("--top-k 1.5", "the value must be an integer of at least"),
        ("--top-p 1.01", "must be a number in (0, 1]"),
        ("--top-p nan", "must be a number in (0, 1]"),
        ("--top-p 1e-400", "must be a number in (0, 1]"),
        ("--length-penalty nan", "must be a number from"),
        ("--length-penalty inf", "must be a number from"),
        ("--length-penalty 1e300", "the value must be a number from"),
        (f"--seed {BIG}", "must be an integer from 0 to"),
        ("--seed -1", "must be an integer from 0 to"),
        ("--seed 1.0", "must be an integer from 0 to"),
        ("--batch-size 0", COUNT),
        (f"--batch-size {BIG}", COUNT),
        ("--method ''", "invalid choice: ''"),
        ("--model RoFormerSeq2Seq", "invalid choice"),
        ("--stop ''", "a stop token must be in the vocabulary, got ''"),
        (
            "--max-length 4 --max-new-tokens 4",
            "a text is limited by max_length or by max_new_tokens, got",
        ),
        (
            "--min-length 9 --max-length 4",
            "min_length must be an integer from 0 to 4, got 9",
        ),
    ],
    "evaluate x t.tsv": [
        ("--num-beams 0", COUNT),
        (f"--num-beams {BIG}", COUNT),
        ("--max-new-tokens 0", COUNT),
        ("--batch-size nan", COUNT),
        ("--length-penalty nan", "must be a finite number"),
        ("--fields ''", "must be a list with commas between"),
        ("--fields ,", "must be a list with commas between"),
        ("--format xml", "invalid choice: 'xml'"),
        ("--on-bad-row ignore", "invalid choice: 'ignore'"),
        ("--num-beams 4", "is not the preset folder of a"),
    ],
    "predict x t.tsv": [
        ("--fields a,,b", "must be a list with commas between"),
        ("--format ''", "invalid choice: ''"),
        ("-o x.csv", "must end in .jsonl"),
        ("--text 今", "give a file of texts"),
    ],
    "export SMALL y": [
        ("--format tflite", "invalid choice: 'tflite'"),
        ("--int8", "int8 is for the formats 'onnx' and 'openvino', got"),
        (
            "--calibration-texts x",
            "texts to calibrate with are for int8 and the format",
        ),
        ("--calibration-texts nowhere", "cannot read nowhere"),
        (
            "--format openvino --int8",
            "int8 in OpenVINO is calibrated with at least 20 different",
        ),
        (
            "--format onnx --int8 --calibration-texts x",
            "texts to calibrate with are for int8 and the format",
        ),
    ],
    "verify SMALL": [
        ("--lengths ''", "must be a list with commas between"),
        ("--lengths 1,,2", "must be a list with commas between"),
        ("--lengths 1.5", "the value must be an integer"),
        ("--lengths -1", "lengths must be 1 or more, to 16,384, got [-1]"),
        ("--lengths 1,nan", "the value must be an integer"),
        (f"--lengths {BIG}", "lengths must be 1 or more, to 16,384, got"),
        ("--reference ''", "there is no reference file"),
        (
            f"--reference {'x' * 300}",
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ),
        (
            "--reference x",
            "x is not a whole reference file (This file contains pickled",
        ),
        (
            "--reference /dev/zero",
            "/dev/zero is not a whole reference file (This file contains",
        ),
        ("--config nowhere", "there is no file nowhere"),
    ],
    f"{FINETUNE} --train t.tsv": [
        ("--epochs 0", "the value must be an integer from 1 to"),
        (f"--epochs {BIG}", "the value must be an integer from 1 to"),
        ("--epochs 1.5", "the value must be an integer from 1 to"),
        ("--batch-size 0", "the value must be an integer from 1"),
        (f"--batch-size {BIG}", "the value must be an integer from 1"),
        ("--num-processes 0", "the value must be an integer from 1 to"),
        ("--coordinator localhost:1", "--coordinator is for several processes"),
        ("--num-processes 2", "processes meet at HOST:PORT, the machine of process 0"),
        (
            "--num-processes 2 --coordinator localhost:99999",
            "a free port there, got coordinator='localhost:99999'",
        ),
        (
            "--process-id 1",
            "process_id must be below num_processes, got process_id=1 and",
        ),
        ("--process-id -1", "process_id must be an integer of at least 0, got -1"),
        ("--accumulation 3", "batch_size must be a multiple of accumulation, got"),
        ("--accumulation 0", "the value must be an integer from"),
        ("--learning-rate nan", "the value must be a number from 0"),
        ("--learning-rate -1", "the value must be a number from 0"),
        ("--learning-rate 1e400", "the value must be a number from 0"),
        ("--learning-rate 1e300", "the value must be a number from 0"),
        ("--warmup-ratio 1", "the value must be a number in [0,"),
        ("--warmup-ratio -0.1", "the value must be a number in [0,"),
        ("--holdout 1", "the value must be a number in [0, 1),"),
        ("--holdout 1e-9", "holdout must leave rows on both sides, got 1e-09 of 4"),
        (
            "--holdout 0.99999",
            "holdout must leave rows on both sides, got 0.99999 of 4",
        ),
        ("--holdout nan", "the value must be a number in [0, 1),"),
        ("--layer-decay 0", "the value must be a number in (0,"),
        ("--layer-decay 1.5", "the value must be a number in (0,"),
        ("--lora-rank -1", "the value must be an integer from 0"),
        (f"--lora-rank {10**12}", "the value must be an integer from 0"),
        ("--lora-rank 2 --lora-alpha nan", "the value must be a finite number,"),
        (
            "--lora-rank 2 --lora-targets colour",
            "targets must be of 'query', 'key', 'value',",
        ),
        ("--lora-alpha 2", "lora_alpha and lora_targets are for LoRA, which lora_rank"),
        ("--freeze-layers -1", "the value must be an integer of"),
        ("--freeze-layers 99", "layers must be an integer from 0 to 2, got 99"),
        ("--adversarial-epsilon inf", "the value must be a finite"),
        ("--adversarial-epsilon -1", "the value must be a finite"),
        ("--r-drop nan", "the value must be a finite number of at"),
        ("--max-length 0", "max_length must be an integer from 4 to 1048576, got 0"),
        ("--max-length 3", "max_length must be an integer from 4 to 1048576, got 3"),
        (f"--max-length {BIG}", "max_length must be an integer from 4 to 1048576, got"),
        ("--max-length -1", "max_length must be an integer from 4 to 1048576, got -1"),
        ("--seed -1", "the value must be an integer from 0 to"),
        (f"--seed {2**32}", "the value must be an integer from 0 to"),
        ("--patience 0", "the value must be an integer of at"),
        ("--patience 1", "patience needs data that are not trained on: give valid, or"),
        (
            "--monitor accuracy",
            "monitor needs data that are not trained on: give valid, or",
        ),
        (
            "--holdout 0.5 --monitor colour",
            "monitor must be one of loss, accuracy, macro_f1, matthews, f1, got",
        ),
        ("--dropout 1", "dropout must be a number in [0, 1), got 1.0"),
        ("--dropout nan", "the value must be a finite number, got"),
        ("--dtype float8", "invalid choice: 'float8' (choose from"),
        ("--dtype ''", "invalid choice: '' (choose from"),
        ("--schedule cosine", "invalid choice: 'cosine' (choose from"),
        ("--optimizer sgd", "invalid choice: 'sgd' (choose from"),
        ("--weight-decay -1", "the value must be a finite number"),
        ("--weight-decay nan", "the value must be a finite number"),
        ("--fields 0,1", "line 1 of t.tsv must name the columns '0', '1', got '甲',"),
        ("--fields 1,99", "line 1 of t.tsv must have 99 columns, got 2"),
        (f"--fields 1,{'9' * 5000}", "line 1 of t.tsv must name the columns '1',"),
        ("--fields a", "fields must name 1 text and a label, got a"),
        ("--fields 1,1,1,1", "fields must name 1 text and a label, got 1, 1, 1, 1"),
        (
            "--pairs --fields 1,2",
            "fields must name two texts and a label with pairs, got 1, 2",
        ),
        ("--crf", "text-classification has no option crf; it has classes,"),
        (
            "--class-weights heavy",
            "class_weights must be 'balanced' or a table of class to",
        ),
        ("--valid nowhere.tsv", "cannot read nowhere.tsv"),
        ("--valid t.tsv --holdout 0.5", "give valid or holdout, not both"),
        ("--source ''", "a source must be a path or a name"),
        ("--format xml", "invalid choice: 'xml'"),
        ("--gradient-checkpointing=1", "argument"),
        ("--overwrite=yes", "ignored explicit argument 'yes'"),
    ],
}
# A TOML file of `finetune`, and what is said of it.
_TOML = [
    ("a." * 50_000 + "b=1", "c.toml must have at most 262,144 characters and 2,000 do"),
    ("#" * 300_000, "c.toml must have at most 262,144 characters and 2,000 dots"),
    ("[" * 5000, "c.toml must be a TOML file: Invalid initial character for a"),
    (
        "a = " + "[" * 5000,
        "c.toml must be a TOML file: maximum recursion depth exceeded",
    ),
    (
        "a = " + "{b=" * 5000,
        "c.toml must be a TOML file: maximum recursion depth exceeded",
    ),
    (
        "epochs = " + "9" * 5000,
        "c.toml must be a TOML file: Exceeds the limit (4300 digits)",
    ),
    ("epochs = 1e400", "epochs must be an integer from 1 to 1000000, got inf"),
    ("epochs = inf", "epochs must be an integer from 1 to 1000000, got inf"),
    ("epochs = nan", "epochs must be an integer from 1 to 1000000, got nan"),
    ("epochs = '3'", "epochs must be an integer from 1 to 1000000, got '3'"),
    ("epochs = true", "epochs must be an integer from 1 to 1000000, got True"),
    ("epochs = []", "epochs must be an integer from 1 to 1000000, got []"),
    (
        "epochs = 1\nepochs = 2",
        "c.toml must be a TOML file: Cannot overwrite a value (at",
    ),
    ("epochs = 1979-05-27", "c.toml must hold no dates and times: write them as"),
    ("colour = 'red'", "FinetuningSettings has no field colour; it has task, train,"),
    ("'' = 1", "FinetuningSettings has no field ; it has task, train,"),
    ("\x00", "c.toml must be a TOML file: Invalid statement (at line 1,"),
    (b"\xff\xfe", "c.toml must be a TOML file: 'utf-8' codec can't decode byte"),
    (
        b"\xed\xa0\x80 = 1",
        "c.toml must be a TOML file: 'utf-8' codec can't decode byte",
    ),
    ("task = 3", "c.toml is for the task 3, the command for"),
    (
        "task = 'text-regression'",
        "c.toml is for the task 'text-regression', the command for",
    ),
    ("fields = 3", "fields must be a list of strings, got '3'"),
    ("fields = [1.5, 2]", "fields must be a list of strings, got (1.5, '2')"),
    ("fields = [[1], 2]", "fields must be a list of strings, got (('1',), '2')"),
    ("fields = [-1, 2]", "line 1 of t.tsv must name the columns '-1', '2', got '甲',"),
    ("options = 3", "c.toml: options must be a table [options], got 3"),
    ("options = []", "c.toml: options must be a table [options], got []"),
    (
        "[options]\ncolour = 1",
        "text-classification has no option colour; it has classes,",
    ),
    ("[options]\nmulti_label = 'yes'", "multi_label must be True or False, got 'yes'"),
    ("[options]\npooling = 'max'", "pooling must be one of 'first', 'mean', got 'max'"),
    (
        "[options]\nnum_classes = 10000000000",
        "classes must be 10000000000 different names, got ['坏', '好']",
    ),
    (
        "[options]\nnum_classes = 3",
        "classes must be 3 different names, got ['坏', '好']",
    ),
    ("[options]\nclasses = 3", "names of labels must be a list, got 3"),
    (
        "[options]\nclasses = ['a']",
        "t.tsv must have labels of at least 2 names, got ['a']",
    ),
    (
        "[options]\nclasses = ['好', '好']",
        "classes must be 2 different names, got ['好', '好']",
    ),
    (
        "[options]\nclasses = ['a', 'b']",
        "line 1 of t.tsv: a label must be an integer from 0 to 1, or",
    ),
    ("[options]\nhead_dropout = 2", "head_dropout must be a number in [0, 1), got 2"),
    (
        "[options]\nhead_dropout = 'x'",
        "head_dropout must be a number in [0, 1), got 'x'",
    ),
    (
        "[options]\nbackbone = 3",
        "text-classification has no option backbone; it has classes,",
    ),
    (
        "[options]\nmax_length = 3",
        "text-classification has no option max_length; it has",
    ),
    ("[options]\nname = 3", "text-classification has no option name; it has classes,"),
    (
        "[options]\ntokenizer = 'x'",
        "text-classification has no option tokenizer; it has",
    ),
    ("model = 3", "c.toml: model must be a table [model], got 3"),
    (
        "[model]\ncolour = 1",
        "RoFormerConfig has no field colour; it has vocabulary_size,",
    ),
    ("[model]\ndropout = 'x'", "dropout must be a number in [0, 1), got 'x'"),
    ("[optimizer]\nname = 'lion'", "name must be one of 'adamw', 'lamb', got 'lion'"),
    (
        "[optimizer]\nname = ['adamw']",
        "name must be one of 'adamw', 'lamb', got ['adamw']",
    ),
    (
        "[optimizer]\nweight_decay = -1",
        "weight_decay must be a finite number of at least 0, got -1",
    ),
    (
        "[optimizer]\ncolour = 1",
        "optimizer has no field colour; it has name, beta_1, beta_2,",
    ),
    (
        "optimizer = 'adamw'",
        "c.toml: optimizer must be a table [optimizer], got 'adamw'",
    ),
    ("class_weights = 3", "class_weights must be a string or a table or None, got 3"),
    ("class_weights = 'x'", "class_weights must be 'balanced' or a table of class to"),
    (
        "[class_weights]\n'好' = 'x'",
        "class_weights of 好 must be a finite number of at least 0,",
    ),
    (
        "[class_weights]\n'好' = nan",
        "class_weights of 好 must be a finite number of at least 0,",
    ),
    (
        "[class_weights]\n'好' = -1",
        "class_weights of 好 must be a finite number of at least 0,",
    ),
    (
        "[class_weights]\nx = 1",
        "a label of class_weight must be an integer from 0 to 1, or",
    ),
    (
        "lora_targets = ['x']\nlora_rank = 2",
        "targets must be of 'query', 'key', 'value',",
    ),
    ("lora_targets = []\nlora_rank = 2", "targets must be of 'query', 'key', 'value',"),
    ("max_length = 'x'", "max_length must be an integer or None, got 'x'"),
    (
        "max_length = 1000000000000",
        "max_length must be an integer from 4 to 1048576, got",
    ),
    ("pairs = 1", "pairs must be True or False, got 1"),
    ("keep_best = 'no'", "keep_best must be True or False, got 'no'"),
    ("seed = 1.0", "seed must be an integer from 0 to 4294967295, got 1.0"),
    ("dtype = 'float16'", "dtype must be one of 'float32', 'mixed_bfloat16',"),
    (
        "on_bad_row = ['skip']",
        "on_bad_row must be one of 'error', 'skip', got ['skip']",
    ),
    (
        "format = 'tsv\\u0000'",
        "format must be one of None, 'csv', 'tsv', 'txt', 'jsonl',",
    ),
]
# The same without --train.
_TRAIN = [
    ("train = 3", "train must be a string, got 3"),
    ("train = []", "train must be a string, got []"),
    ("train = ''", "a file of labelled texts must be .csv, .tsv, .txt, .jsonl,"),
    (
        "train = '../../../../etc/shadow\\u0000'",
        "a file of labelled texts must be .csv, .tsv, .txt, .jsonl,",
    ),
    ("train = '/dev/zero.tsv'", "cannot read /dev/zero.tsv: No such file or directory"),
]
# Lines of other exit codes.
_OTHERS = [
    ("predict x t.tsv -o no/x.jsonl", 4, "no is not a folder: make it first"),
    ("verify SMALL --bert4keras nowhere", 6, "there is no bert4keras package in"),
    (f"verify SMALL --bert4keras {'x' * 300}", 6, "there is no bert4keras package"),
    ("verify SMALL --python nowhere", 6, "cannot run nowhere: No such file"),
    ("verify SMALL --save-reference no/x", 4, "no is not a folder: make it first"),
    ("embed x -o no/x.npy", 4, "no is not a folder: make it first"),
    ("generate --text 今 -o no/x.tsv", 4, "no is not a folder: make it first"),
    ("export SMALL no/x", 4, "no is not a folder: make it first"),
    ("export SMALL x", 4, "x is a file: give the name of a folder"),
]
# Fields of the model that do not fit its weights.
_MODEL = [
    ("num_layers = 99", "the configuration has 99 layers, but"),
    ("num_layers = 100000000000", "the configuration has 100,000,000,000 layers, but"),
    ("vocabulary_size = 10000000000", "expected (10000000000, 8)"),
    ("hidden_dim = 10000000000", "expected (260, 10000000000)"),
]
CASES = [
    *(
        (f"{line} {words}", ROWS, 2, message)
        for line, rows in _FLAGS.items()
        for words, message in rows
    ),
    *(
        (f"{FINETUNE} --train t.tsv --config c.toml", ROWS | {"c.toml": text}, 2, m)
        for text, m in _TOML
    ),
    *(
        (f"{FINETUNE} --config c.toml", {**ROWS, "c.toml": text}, 2, message)
        for text, message in _TRAIN
    ),
    *((line, ROWS, code, message) for line, code, message in _OTHERS),
    *(
        (f"{FINETUNE} --train t.tsv --config c.toml", {**ROWS, "c.toml": text}, 3, m)
        for text, m in ((f"[model]\n{field}", m) for field, m in _MODEL)
    ),
]
