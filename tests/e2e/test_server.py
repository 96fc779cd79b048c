"""The server as a process: OpenAI's client, slow and hostile ones, signals, a page.

One process serves an export, without Keras, and one a model of Keras. The last test
ends both.
"""

import contextlib
import json
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import docs_blocks
import numpy as np
import openai
import pytest
from common import GPT, ROOT
from hostile import requests
from server_process import PATIENCE, Server, until

from roformer_keras import RoFormerCausalLM, search
from roformer_keras.export import ServedGenerator

KEY_LINE = b"Authorization: Bearer secret\r\n"
TEXTS = [f"今天{a}{b}" for a in "天气不错北京" for b in "我你在人气天"]


@pytest.fixture(scope="module")
def sim(export, tmp_path_factory):
    index = tmp_path_factory.mktemp("index") / "texts.index"
    search.build_index(index, TEXTS, ServedGenerator(export))
    flags = ("--index", str(index))
    flags += ("--read-timeout", "2", "--max-connections", "300", "--queue-size", "200")
    flags += ("--max-body", str(2**20), "--timeout", str(PATIENCE))
    with Server(export, *flags) as server:
        yield server


def embeddings(server, texts):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=8)
    answer = client.embeddings.create(input=texts, model="roformer-sim-char")
    return [item.embedding for item in answer.data]


def test_many_clients_of_openai_get_the_vectors_of_encode(sim, export):
    expected = ServedGenerator(export).encode(TEXTS)
    with ThreadPoolExecutor(16) as pool:
        vectors = list(pool.map(lambda text: embeddings(sim, text)[0], TEXTS))
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_allclose(embeddings(sim, TEXTS), expected, atol=1e-6)
    assert sim.count_of("batch_texts_sum") >= 2 * len(TEXTS)


def test_a_full_server_says_when_to_try_again(sim):
    def ask(_):
        body = {"texts": ["今天天气不错"] * 60, "n": 20, "max_tokens": 20}
        return sim.post("/paraphrase", body)

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(ask, range(5)))
    assert {answer.status_code for answer in answers} == {200, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["Retry-After"]) >= 1
            assert "the server is busy" in answer.json()["error"]["message"]


def test_connections_and_slow_bodies_have_limits(sim):
    with contextlib.ExitStack() as stack:

        def connect():
            return stack.enter_context(sim.connect())

        idle = [connect() for _ in range(250)]
        slow_body, waiting = connect(), connect()
        slow_body.sendall(
            b"POST /similarity HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        assert embeddings(sim, "北京")
        status, content = answer_of(slow_body)
        assert status == 408
        assert "within 2 seconds" in content
        # After an answer, a connection is for the next request, for some seconds.
        waiting.sendall(b"GET /health" + HOST + b"\r\n")
        assert answer_of(waiting)[0] == 200
        idle += [connect() for _ in range(100)]
        assert sim.get("/health").status_code == 503
    until(lambda: sim.get("/health").status_code == 200)
    assert embeddings(sim, "北京")


HOST = b" HTTP/1.1\r\nHost: localhost\r\n"


def answer_to(server, request):
    """Status and content of the answer to bytes, all of it."""
    with server.connect() as connection:
        # An answer may come before all is sent.
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        return answer_of(connection)


def answer_of(connection):
    """Status and content that come until the server closes; in packets of any size."""
    received = b""
    # The server may close before it has read all.
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    start, _, content = received.partition(b"\r\n\r\n")
    return int(start.split()[1]), content.decode()


@pytest.fixture(scope="module")
def gpt():
    flags = ("--api-key", "secret", "--max-body", str(2**20))
    flags += ("--timeout", str(PATIENCE))
    with Server(GPT, *flags) as server:
        yield server


@contextlib.contextmanager
def another_client(server):
    """A client that is served all the while, without a request that fails."""
    ended, statuses = threading.Event(), []

    def ask():
        while not ended.is_set():
            answer = server.post("/v1/embeddings", {"input": "今天天气不错"})
            statuses.append(answer.status_code)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        yield
        ended.set()
        asking.result()
    assert set(statuses) == {200}


def test_hostile_requests_get_plain_words_while_others_are_served(sim, gpt):
    wrong, table = [], [(sim, *row) for row in requests.TO_SIM]
    table += [(gpt, *row) for row in requests.TO_GPT]
    assert len({request for _, request, _, _ in table}) == len(table) > 120
    with another_client(sim):
        for server, request, status, words in table:
            answer = answer_to(server, request)
            is_plain = words in answer[1] and len(answer[1]) < 500
            if answer[0] != status or not is_plain:
                wrong.append((request[:200], status, words, answer))
    assert wrong == []


def steps_of_a_client_that_goes(server, path, body, short):
    """Steps of a turn that are computed, and turns; `short` comes when it has ended."""

    def counts():
        names = ("generation_steps_total", "batch_texts_count")
        return np.array([server.count_of(name) for name in names])

    before = counts()
    with server.connect() as connection:
        headers = requests.JSON_TYPE + KEY_LINE
        connection.sendall(requests.post(path, body, headers))
        until(lambda: counts()[0] > before[0])
    assert server.post(path, {**body, **short}).status_code == 200
    return counts() - before


def test_a_turn_ends_when_its_client_goes(gpt):
    # Some hundred steps, so that it goes early on any machine. Texts that are drawn may
    # end sooner.
    body = {"prompt": "今天", "n": 32, "max_tokens": 1000}
    path, short = "/v1/completions", {"n": 1, "max_tokens": 1}
    before = gpt.count_of("generation_steps_total")
    assert gpt.post(path, body).status_code == 200
    whole = gpt.count_of("generation_steps_total") - before
    spent, _ = steps_of_a_client_that_goes(gpt, path, body, short)
    assert whole > 50
    assert spent < whole / 2


def test_turns_that_nobody_waits_for_are_left_out(sim):
    body = {"texts": ["今天天气不错"] * 150, "n": 50, "max_tokens": 64}
    short = {"texts": body["texts"][:1], "max_tokens": 1}
    _, turns = steps_of_a_client_that_goes(sim, "/paraphrase", body, short)
    assert turns < 75


def test_a_stream_of_openai(gpt):
    options = {"model": GPT.name, "prompt": "今天", "max_tokens": 8, "temperature": 0}
    client = openai.OpenAI(base_url=f"{gpt.url}/v1", api_key="secret")
    pieces = list(client.completions.create(stream=True, **options))
    text = "".join(piece.choices[0].text for piece in pieces)
    model = RoFormerCausalLM.from_preset(GPT)
    expected = model.generate("今天", max_new_tokens=8, method="greedy", verbose=0)
    assert text == expected
    wrong = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError, match="the server wants its key"):
        wrong.completions.create(**options)
    with pytest.raises(openai.NotFoundError, match="this server has the model"):
        client.completions.create(**{**options, "model": "gpt-4"})


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_page_of_the_docs_works_as_it_is_printed(sim, capsys):
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    page = page.replace(":8000", f":{sim.port}")
    commands = [
        line
        for _, language, content in docs_blocks.blocks_of(page)
        for line in content.splitlines()
        if language == "shell" and line.startswith("curl")
    ]
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(
            [*shlex.split(command), "--silent", "--fail-with-body"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert json.loads(done.stdout)
    for _, language, content in docs_blocks.blocks_of(page):
        if language == "python":
            exec(content, {"__name__": "page"})
    assert capsys.readouterr().out == "32\n"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_the_page_searches_and_writes(sim, language):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "no-first-run"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
    ):
        options.add_argument(f"--{flag}")
    options.add_experimental_option("prefs", {"intl.accept_languages": language})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        for width in (390, 1200):
            check_page(driver, sim.url, width)
        is_chinese = language.startswith("zh")
        title = driver.find_element("id", "search-title").text
        assert title == ("检索" if is_chinese else "Search")
    finally:
        driver.quit()


def check_page(driver, url, width):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    def text_of(selector):
        return driver.find_element(By.CSS_SELECTOR, selector).text

    # A window is never as narrow as a phone.
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True},
    )
    driver.get(url)
    wait = WebDriverWait(driver, PATIENCE)
    wait.until(lambda _: text_of("#search .timing").endswith(" ms"))
    assert text_of("#model") == "roformer-sim-char"
    assert len(driver.find_elements(By.CSS_SELECTOR, "#search li")) == 8
    field = driver.find_element(By.ID, "paraphrase-text")
    field.send_keys(Keys.TAB)
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    wait.until(lambda _: "ms" in text_of("#paraphrase .timing"))
    driver.find_element(By.CSS_SELECTOR, "#rerank button").click()
    wait.until(lambda _: "ms" in text_of("#rerank .timing"))
    assert "学而时习之" in text_of("#rerank .answers")
    # Nothing is wider than the window, and what the model cannot do is hidden.
    page = driver.find_element(By.TAG_NAME, "html")
    assert driver.execute_script("return arguments[0].scrollWidth", page) <= width
    assert not driver.find_element(By.ID, "write").is_displayed()
    assert driver.get_log("browser") == []


def test_servers_end_by_signals(sim, gpt):
    options = {"model": GPT.name, "prompt": "今天", "max_tokens": 200, "stream": True}
    stream = openai.OpenAI(base_url=f"{gpt.url}/v1", api_key="secret")
    pieces = iter(stream.completions.create(**options))
    next(pieces)
    gpt.process.send_signal(signal.SIGTERM)
    # What has begun comes to its end.
    assert [piece.choices[0].finish_reason for piece in pieces][-1] is not None
    assert gpt.process.wait(PATIENCE) == 0
    # Killed, a server leaves nothing behind: its port is free.
    assert sim.end(signal.SIGKILL) == -signal.SIGKILL
    socket.create_server(("127.0.0.1", sim.port)).close()
