"""Routes of the server: answers equal those of the models, and wrong requests."""

import base64
import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from common import CHARACTER, GPT, SIM, random_lm, write_lines
from starlette.testclient import TestClient

from roformer_keras import (
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSim,
    RoFormerTextClassifier,
    RoFormerTextRegressor,
    RoFormerTokenClassifier,
    RoFormerTokenizer,
    search,
)
from roformer_keras.base.checks import integer
from roformer_keras.base.errors import ConfigurationError
from roformer_keras.cli import main
from roformer_keras.server import ServerOptions, create_app
from roformer_keras.server.models import ServedModel
from roformer_keras.server.run import find_address
from roformer_keras.tasks.evaluation import fit_baselines
from roformer_keras.tasks.finetuned import write_baselines
from roformer_keras.verbs.registered import VERBS, register
from roformer_keras.verbs.surfaces import Inputs, Output, Route
from roformer_keras.verbs.vectors import ReadingVerb

TEXTS = ["今天天气不错", "我爱北京", "你好"]


@pytest.fixture(scope="module")
def sim():
    with client_of(ServedModel(SIM, engine="openvino")) as client:
        yield client


@pytest.fixture(scope="module")
def gpt():
    with client_of(ServedModel(GPT, engine="openvino")) as client:
        yield client


def client_of(model, **options):
    return TestClient(create_app(model, **options), raise_server_exceptions=False)


def vectors_of(served):
    return served.answer(served.verbs["embed"], [(text,) for text in TEXTS])


def post(client, path, status=200, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedCharacters(ReadingVerb):
    """Find the characters that two texts share."""

    least: int = integer(1, minimum=1)

    name = "shared-characters"
    inputs = Inputs(("first", "second"), count=2)
    output = Output({"characters": [str], "is_enough": bool}, "")
    route = Route("/shared-characters", "pairs", "shared", renamed={"least": "n"})
    takes = ("RoFormerSim",)

    def answer(self, loaded, rows, numbers, on_step=None):
        shared = [sorted({*first} & {*second}) for first, second in rows]
        is_enough = [len(characters) >= self.least for characters in shared]
        return {"characters": shared, "is_enough": is_enough}


def test_a_verb_that_is_registered_has_a_route(monkeypatch):
    monkeypatch.setitem(VERBS, SharedCharacters.name, None)
    register(SharedCharacters)
    path, pairs = "/shared-characters", [["今天", "天今"], ["你", "好"]]
    with client_of(ServedModel(SIM)) as client:
        answers = post(client, path, pairs=pairs, n=2)["shared"]
        wrong = post(client, path, 422, pairs=pairs, n=0)["error"]["message"]
        too_long = post(client, path, 422, pairs=[["今", "天", "好"]])["error"]
        described = client.get("/openapi.json").json()
        model = client.get("/v1/models").json()["data"][0]
        counted = client.get("/metrics").text
    assert answers == [
        {"characters": ["今", "天"], "is_enough": True},
        {"characters": [], "is_enough": False},
    ]
    assert wrong == "n: must be greater than or equal to 1"
    assert "pairs.0" in too_long["message"]
    # The page reads them.
    assert SharedCharacters.name in model["abilities"]
    assert f'route="{path}",status="200"' in counted
    route = described["paths"][path]["post"]
    assert route["description"] == "Find the characters that two texts share."
    schema = route["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema["properties"]["shared"]["items"]["properties"] == {
        "characters": {"type": "array", "items": {"type": "string"}},
        "is_enough": {"type": "boolean"},
    }
    fields = described["components"]["schemas"]["SharedCharactersRequest"]["properties"]
    assert fields["n"] == {"default": 1, "minimum": 1, "title": "N", "type": "integer"}
    assert fields["pairs"]["items"]["maxItems"] == 2


def test_embeddings_are_those_of_encode(sim):
    expected = RoFormerSim.from_preset(SIM).encode(TEXTS, verbose=0)
    # Fewer dimensions are the first ones, of length 1 again.
    first = expected[:, :4] / np.linalg.norm(expected[:, :4], axis=1, keepdims=True)
    for options, wanted in (
        ({"encoding_format": "float"}, expected),
        ({"encoding_format": "base64"}, expected),
        ({"dimensions": 4}, first),
        ({"dimensions": 32}, expected),
    ):
        answer = post(sim, "/v1/embeddings", input=TEXTS, **options)
        vectors = [one["embedding"] for one in answer["data"]]
        if options.get("encoding_format") == "base64":
            vectors = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors]
        np.testing.assert_allclose(vectors, wanted, atol=1e-6)
        assert [one["index"] for one in answer["data"]] == [0, 1, 2]
        assert answer["model"] == SIM.name
        # With [CLS] and [SEP] of each.
        assert answer["usage"]["prompt_tokens"] == 6 + 4 + 2 + 3 * 2
    for wrong in (0, -1, 33):
        answer = post(sim, "/v1/embeddings", 400, input="a", dimensions=wrong)
        assert "from 1 to 32" in answer["error"]["message"]


def test_a_fault_is_logged_and_the_server_goes_on():
    served, body = ServedModel(SIM), {"input": "今天"}
    faults = [ZeroDivisionError("a fault"), vectors_of(served)[:1]]
    served.answer = mock.Mock(side_effect=faults + faults)
    with TestClient(create_app(served)) as client:
        # The server of the application logs it.
        with pytest.raises(ZeroDivisionError, match="a fault"):
            client.post("/v1/embeddings", json=body)
        post(client, "/v1/embeddings", **body)
    with client_of(served) as client:
        error = post(client, "/v1/embeddings", 500, **body)["error"]
        assert "its log says why" in error["message"]
        assert 'route="/v1/embeddings",status="500"' in client.get("/metrics").text


def test_a_model_that_is_served_is_not_compared(monkeypatch):
    served = ServedModel(SIM, engine="openvino")
    expected = vectors_of(served)
    served.fix()
    monkeypatch.setattr(
        "roformer_keras.inference.compiled_forward.Structure.has_changed", None
    )
    monkeypatch.setattr("roformer_keras.base.compiled.WeightValues.now", None)
    np.testing.assert_array_equal(vectors_of(served), expected)


def test_a_sim_compares_and_finds_similar_sentences(sim):
    model = RoFormerSim.from_preset(SIM)
    pairs = [["今天天气不错", "天气好"], ["北京", "北京"]]
    answer = post(sim, "/similarity", pairs=pairs)["similarity"]
    expected = model.similarity(*zip(*pairs, strict=True), verbose=0)
    np.testing.assert_allclose(answer, expected, atol=1e-5)
    options = {"n": 4, "k": 2, "seed": 3}
    answer = post(sim, "/paraphrase", texts=TEXTS[:1], max_tokens=8, **options)
    options |= {"max_new_tokens": 8, "engine": "openvino"}
    expected = model.paraphrase(TEXTS[:1], verbose=0, **options)
    assert [[one["text"] for one in own] for own in answer["paraphrases"]] == [
        [one.output for one in own] for own in expected
    ]
    assert post(sim, "/v1/completions", 404, prompt="今天")["error"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["openvino", "keras"])
def test_what_is_written_in_turn_is_what_is_written_alone(engine):
    long, short = ({"n": n, "k": n, "max_tokens": 12} for n in (40, 3))
    bodies = [
        {"texts": TEXTS[:1], "seed": seed, **body}
        for seed, body in enumerate((long, short, long, short, short, long))
    ]
    with client_of(ServedModel(SIM, engine=engine)) as client:

        def ask(body):
            return post(client, "/paraphrase", **body)["paraphrases"]

        alone = list(map(ask, bodies))
        with ThreadPoolExecutor(len(bodies)) as pool:
            together = list(pool.map(ask, bodies))
        vectors = post(client, "/v1/embeddings", input=TEXTS)["data"]
        assert [len(one["embedding"]) for one in vectors] == [32] * 3
    assert together == alone
    assert [len(one[0]) > 2 for one in alone] == [True] * 6


def test_completions_are_those_of_generate(gpt):
    model = RoFormerCausalLM.from_preset(GPT)
    options = {"max_tokens": 6, "seed": 5, "top_p": 0.9, "temperature": 0.8}
    answer = post(gpt, "/v1/completions", prompt=TEXTS, **options)
    options["max_new_tokens"] = options.pop("max_tokens")
    expected = model.generate(TEXTS, engine="openvino", verbose=0, **options)
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"]["prompt_tokens"] == 6 + 4 + 2 + 3
    several = post(gpt, "/v1/completions", prompt="今天", n=3, max_tokens=4, seed=1)
    assert len(several["choices"]) == 3
    # Clients of OpenAI send `top_p` with each temperature.
    body = {"temperature": 0, "top_p": 0.5, "max_tokens": 4}
    greedy = post(gpt, "/v1/completions", prompt="今天", **body)
    text = model.generate("今天", method="greedy", max_new_tokens=4, engine="openvino")
    assert greedy["choices"][0]["text"] == text
    assert greedy["choices"][0]["finish_reason"] == "length"


def events_of(client, **body):
    """The events of a stream of a completion, but for the last one."""
    body["stream"] = True
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *lines, last = (line for line in answer.iter_lines() if line)
    assert last == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_stream_is_the_text_piece_by_piece(gpt):
    body = {"prompt": "今天", "max_tokens": 6, "seed": 5}
    whole = post(gpt, "/v1/completions", **body)["choices"][0]
    choices = [event["choices"][0] for event in events_of(gpt, **body)]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert len(choices) > 3
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    options = {"stream_options": {"include_usage": True}, "n": None, "top_p": None}
    *_, usage = events_of(gpt, **body, **options)
    assert usage["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("place", range(4))
def test_a_completion_is_without_its_stop_token(gpt, place):
    model = RoFormerCausalLM.from_preset(GPT)
    tokenizer = model.tokenizer
    options = {"method": "greedy", "max_new_tokens": 6, "engine": "openvino"}
    ids = model.generate([tokenizer.encode("今天")[0][:-1]], verbose=0, **options)[0]
    ended = ids[: ids.index(ids[place]) + 1]
    body = {"prompt": "今天", "max_tokens": 6, "temperature": 0}
    body["stop"] = [tokenizer.id_to_token(ids[place])]
    whole = post(gpt, "/v1/completions", **body)
    streamed = [event["choices"][0] for event in events_of(gpt, **body)]
    for choices in (whole["choices"], streamed):
        text = "".join(choice["text"] for choice in choices)
        assert text == tokenizer.decode(ended[:-1])
        assert choices[-1]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == len(ended)


def test_clients_may_ask_by_other_names():
    names = ("text-embedding-3-small", "other")
    with client_of(str(SIM), options=ServerOptions(model_name=names)) as client:
        models = client.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == list(names)
        assert client.get("/v1/models/other").json()["id"] == "other"
        for name in (*names, None):
            answer = post(client, "/v1/embeddings", input="a", model=name)
            assert answer["model"] == names[0]
        post(client, "/v1/embeddings", 404, input="a", model=SIM.name)
        assert client.get(f"/v1/models/{SIM.name}").status_code == 404
        text = client.get("/metrics").text
    assert 'roformer_requests_total{route="/v1/embeddings",status="404"} 1.0' in text
    assert "roformer_batch_texts_bucket" in text


def test_masks_are_filled_and_each_is_one_token():
    with client_of(ServedModel(CHARACTER, max_length=8)) as client:
        masks = post(client, "/fill-mask", texts=["今天[MASK]气"], top_k=2)["masks"]
        many = post(client, "/fill-mask", texts=["[MASK]" * 6])["masks"]
        for wrong in ("今天", "[MASK]" * 7):
            assert post(client, "/fill-mask", 400, texts=[wrong])["error"]
    model = RoFormerMaskedLM.from_preset(CHARACTER, output_activation=None)
    (expected,) = model.fill_mask(["今天[MASK]气"], top_k=2)
    assert [one["token"] for one in masks[0][0]] == [one.token for one in expected[0]]
    assert len(many[0]) == 6


def test_long_requests_are_tokenized_in_a_thread():
    served, threads = ServedModel(SIM), []

    def count_tokens(verb, rows):
        threads.append(threading.get_ident())
        return [1 for _ in rows]

    served.count_tokens = count_tokens
    with client_of(served) as client:
        for text in ("今天", "天气", "天气" * 1500):
            post(client, "/v1/embeddings", input=text)
    assert threads[0] == threads[1] != threads[2]


def test_a_task_predicts(tmp_path):
    model = RoFormerTextClassifier.from_preset(CHARACTER, classes=["好", "坏"])
    model.save_to_preset(tmp_path / "reviews")
    with client_of(str(tmp_path / "reviews")) as client:
        predicted = post(client, "/predict", rows=[TEXTS[0], [TEXTS[1]]])["answers"]
        assert post(client, "/predict", 400, rows=[["一", "二", "三"]])["error"]
        abilities = client.get("/v1/models").json()["data"][0]["abilities"]
        assert {*abilities} == {"predict", "rerank"}
        mixed = post(client, "/predict", 400, rows=[TEXTS[0], ["一", "二"]])
        assert "row 1 has 2" in mixed["error"]["message"]
    assert predicted == model.files.to_json([(text,) for text in TEXTS[:2]])


def test_a_model_that_knows_no_chinese_is_warmed_up(tmp_path, monkeypatch):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##b", "a", "b", "c"]
    model = random_lm(vocabulary_size=len(tokens))
    model.tokenizer = RoFormerTokenizer(tokens)
    model.save_to_preset(tmp_path / "english")
    monkeypatch.chdir(tmp_path / "english")
    served = ServedModel(".")
    assert served.name == "english"
    served.warm_up()
    with client_of(served) as client:
        body = {"prompt": "a b", "max_tokens": 3, "stream": True}
        answer = client.post("/v1/completions", json=body).text
    assert answer.count("data: ") <= 5 and answer.endswith("data: [DONE]\n\n")


def test_a_host_that_is_no_name_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"cannot listen at 127\.\.1, port 0 \("
    ):
        find_address("127..1", 0)


def test_the_engine_computes_every_verb():
    engines = ("openvino", "openvino-int8")
    exact, rounded = (vectors_of(ServedModel(SIM, engine=name)) for name in engines)
    assert 1e-5 < np.abs(exact - rounded).max() < 0.1


def test_an_index_is_searched_and_texts_are_ranked(tmp_path):
    model = RoFormerSim.from_preset(SIM)
    index = search.build_index(tmp_path / "x.index", TEXTS, model)
    options = ServerOptions(index=str(index))
    with client_of(ServedModel(SIM), options=options) as client:
        abilities = client.get("/v1/models").json()["data"][0]["abilities"]
        assert {"search", "rerank"} <= {*abilities}
        found = post(client, "/search", queries=["天气", "你"], top_k=2)["results"]
        expected = search.VectorIndex(index, model).search(["天气", "你"], 2)
        for one, other in zip(found, expected, strict=True):
            assert [hit["row"] for hit in one] == [hit.number for hit in other]
            assert [hit["text"] for hit in one] == [hit.text for hit in other]
        documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
        body = {"query": "天气", "documents": documents, "return_documents": True}
        answer = post(client, "/v1/rerank", **body, model=SIM.name, top_n=2)
        assert post(client, "/v2/rerank", **body, model=SIM.name, top_n=2) == answer
        ranks = model.rerank("天气", TEXTS, top_k=2)
        assert [one["index"] for one in answer["results"]] == [n for n, _ in ranks]
        scores = [one["relevance_score"] for one in answer["results"]]
        np.testing.assert_allclose(scores, [score for _, score in ranks], atol=1e-5)
        texts = [one["document"]["text"] for one in answer["results"]]
        assert texts == [TEXTS[number] for number, _ in ranks]
        assert answer["usage"]["total_tokens"] > 0
        post(client, "/v1/rerank", 400, query="", documents=TEXTS)
        post(client, "/v1/rerank", 400, **body, label="好")
        post(client, "/v1/rerank", 404, **body, model="another")
    with client_of(ServedModel(SIM)) as client:
        post(client, "/search", 404, queries=["天气"])
    with pytest.raises(ConfigurationError, match="with attention='causal'"):
        create_app(ServedModel(GPT), options)


@pytest.mark.parametrize("is_task", [True, False])
def test_an_index_is_served_by_what_made_it(is_task, tmp_path, capsys):
    source = CHARACTER
    if is_task:
        source = tmp_path / "task"
        model = RoFormerTextClassifier.from_preset(CHARACTER, num_classes=3)
        model.save_to_preset(source)
    file, index = write_lines(tmp_path / "a.txt", TEXTS), str(tmp_path / "a.index")
    command = ["index", str(file), "-o", index, "--source", str(source), "--quiet"]
    assert main(command) == 0
    assert main(["search", index, "--text", "天气", "--quiet"]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    options = ServerOptions(index=index)
    with client_of(ServedModel(source), options=options) as client:
        (found,) = post(client, "/search", queries=["天气"])["results"]
    assert found == json.loads(line)["results"]


@pytest.mark.parametrize(
    ("kind", "options", "count", "ranks"),
    [
        (RoFormerTextClassifier, {"classes": ["否", "是"]}, None, True),
        (RoFormerTextRegressor, {}, None, True),
        (RoFormerTextRegressor, {}, 2, True),
        (RoFormerTextRegressor, {}, 1, False),
        (RoFormerTextClassifier, {"num_classes": 2, "multi_label": True}, None, False),
        (RoFormerTokenClassifier, {"labels": ["人"]}, None, False),
    ],
)
def test_what_ranks_is_one_rule(kind, options, count, ranks, tmp_path, capsys):
    model, body = kind.from_preset(CHARACTER, **options), {"query": "天气"}
    model.save_to_preset(folder := tmp_path / "preset")
    if count is not None:
        labels = [0.0, 1.0, 2.0]
        learned = fit_baselines(model, [("你",) * count] * 3, labels)
        write_baselines(folder, learned)
    file = write_lines(tmp_path / "a.txt", TEXTS)
    words = ["rerank", str(file), "--query", "天气", "--source", str(folder)]
    assert main([*words, "--quiet"]) == (0 if ranks else 2)
    lines = capsys.readouterr().out.splitlines()
    with client_of(ServedModel(folder)) as client:
        status = 200 if ranks else 404
        answer = post(client, "/v1/rerank", status, **body, documents=TEXTS)
    if ranks:
        expected = model.rerank("天气", TEXTS)
        assert [one["index"] for one in answer["results"]] == [n for n, _ in expected]
        scores = [json.loads(lines[n])["score"] for n, _ in expected]
        np.testing.assert_allclose(scores, [one for _, one in expected], atol=1e-5)
