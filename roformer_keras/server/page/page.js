"use strict";
// Shows what the model behind this server can do, and asks it.

const find = (id) => document.getElementById(id);
// Chinese, where the reader's browser asks for it before English.
const isChinese = navigator.languages
  .find((name) => /^(en|zh)\b/.test(name))
  ?.startsWith("zh");
const localized = (english, chinese) => (isChinese ? chinese : english);
let key = sessionStorage.getItem("key") || "";

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...options, headers, signal });
  if (answer.ok) return answer;
  if (answer.status === 401) find("key").hidden = false;
  const wrong = await answer.json().catch(() => null);
  const status = localized("status", "状态码");
  throw new Error(wrong?.error?.message ?? `${status} ${answer.status}`);
}

function make(tag, text, className) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

function showRemark(section, text, isError) {
  const place = section.querySelector(".timing");
  place.textContent = text;
  place.classList.toggle("error", Boolean(isError));
}

// Runs one request of a section, and says how long it took. A later one ends it.
const running = new Map();
async function run(name, request) {
  const section = find(name);
  running.get(name)?.abort();
  const control = new AbortController();
  running.set(name, control);
  const start = performance.now();
  try {
    const note = await request(section, control.signal);
    if (control.signal.aborted) return;
    const spent = Math.round(performance.now() - start);
    showRemark(section, [`${spent} ms`, note].filter(Boolean).join(localized(", ", "，")));
  } catch (error) {
    if (!control.signal.aborted) showRemark(section, error.message, true);
    else if (name === "write") showRemark(section, localized("stopped", "已停止"));
  }
}

function showRanked(list, rows) {
  list.replaceChildren(
    ...rows.map(({ text, value }) => {
      const item = document.createElement("li");
      item.append(make("span", text), make("span", value.toFixed(3), "number"));
      item.style.setProperty("--share", `${Math.max(0, value) * 100}%`);
      return item;
    }),
  );
}

function search() {
  const text = find("search-text").value.trim();
  if (!text) return;
  run("search", async (section, signal) => {
    const body = { queries: [text], top_k: 8 };
    const found = await (await ask("search", body, signal)).json();
    showRanked(
      section.querySelector(".answers"),
      found.results[0].map((one) => ({ text: one.text, value: one.score })),
    );
    return "";
  });
}

function rerank() {
  const query = find("rerank-text").value.trim();
  const documents = find("rerank-texts").value.split("\n").filter((text) => text.trim());
  run("rerank", async (section, signal) => {
    const body = { query, documents, return_documents: true };
    const found = await (await ask("v1/rerank", body, signal)).json();
    showRanked(
      section.querySelector(".answers"),
      found.results.map((one) => ({ text: one.document.text, value: one.relevance_score })),
    );
    return "";
  });
}

function paraphrase() {
  const text = find("paraphrase-text").value.trim();
  run("paraphrase", async (section, signal) => {
    showRemark(section, localized("writing …", "正在生成……"));
    const body = { texts: [text], n: 20, k: 10 };
    const found = await (await ask("paraphrase", body, signal)).json();
    const rows = found.paraphrases[0];
    showRanked(
      section.querySelector(".answers"),
      rows.map((one) => ({ text: one.text, value: one.similarity })),
    );
    return rows.length ? "" : localized("none was found", "没有找到");
  });
}

let writes = 0;
async function write() {
  const own = ++writes;
  const prompt = find("write-text").value.trim();
  find("stop").disabled = false;
  await run("write", async (section, signal) => {
    const place = section.querySelector(".written");
    place.textContent = prompt;
    showRemark(section, localized("writing …", "正在生成……"));
    const body = { prompt, stream: true, max_tokens: 128, top_p: 0.9 };
    const answer = await ask("v1/completions", body, signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return "";
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event === "data: [DONE]") continue;
        const content = JSON.parse(event.slice("data: ".length));
        if (content.error) throw new Error(content.error.message);
        place.textContent += content.choices[0].text;
      }
    }
  });
  // A later one may have begun.
  if (own === writes) find("stop").disabled = true;
}

function fill() {
  const text = find("fill_mask-text").value.trim();
  run("fill_mask", async (section, signal) => {
    const found = await (await ask("fill-mask", { texts: [text] }, signal)).json();
    const lists = found.masks[0].map((mask) => {
      const list = make("ol", "", "answers");
      showRanked(
        list,
        mask.map((one) => ({ text: one.token, value: one.probability })),
      );
      return list;
    });
    section.querySelector(".answers").replaceChildren(...lists);
  });
}

function predict() {
  const lines = find("predict-text").value.split("\n").filter((line) => line.trim());
  run("predict", async (section, signal) => {
    const found = await (await ask("predict", { rows: [lines] }, signal)).json();
    const shown = JSON.stringify(found.answers[0], null, 2);
    section.querySelector(".answers").textContent = shown;
  });
}

function translate() {
  if (!isChinese) return;
  document.documentElement.lang = "zh-Hans";
  for (const element of document.querySelectorAll("[data-zh]")) {
    element.textContent = element.dataset.zh;
  }
}

async function start() {
  const state = find("state");
  try {
    const model = (await (await ask("v1/models")).json()).data[0];
    find("key").hidden = true;
    find("model").textContent = model.id;
    state.textContent = "";
    for (const ability of model.abilities) {
      const section = find(ability);
      if (section) section.hidden = false;
    }
    if (model.abilities.includes("search")) search();
  } catch (error) {
    state.textContent = error.message;
    state.className = "error";
  }
}

let pause;
find("search-text").addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(search, 150);
});
for (const [name, action] of Object.entries({ rerank, paraphrase, write, fill_mask: fill, predict })) {
  find(name).querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}
find("stop").addEventListener("click", () => running.get("write")?.abort());
find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = find("key-text").value;
  sessionStorage.setItem("key", key);
  start();
});
translate();
start();
