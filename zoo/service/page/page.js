// Suggests labels for a text and shows which words made them. Texts and labels are only ever set as text, never as HTML.
import { documentsOf, pieces } from "./texts.js";

const PAUSE = 600; // milliseconds without typing after which labels are suggested
const at = (id) => document.getElementById(id);
const [text, marks, sheet, list] = ["text", "marks", "sheet", "labels"].map(at);
const state = { documents: [], current: 0, answer: null, asked: "", pinned: null, token: "", file: "" };
let running = null; // AbortController of the request on its way
let timer = 0;

async function call(path, body) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  running?.abort();
  running = new AbortController();
  const options = { headers, signal: running.signal, ...(body && { method: "POST", body: JSON.stringify(body) }) };
  const response = await fetch(path, options);
  const content = await response.json().catch(() => ({}));
  if (!response.ok) {
    at("access").hidden = response.status !== 401;
    throw new Error(content.detail || `the service answered with status ${response.status}`);
  }
  at("access").hidden = true;
  return content;
}

async function describe() {
  const model = await call("v1/model");
  at("name").textContent = model.name;
  document.title = `${model.name}: labels for a text`;
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}`;
  at("about").textContent = `${model.heads.join(" + ")}, ${count(model.labels, "labels")}, ${count(model.train_documents, "training documents")}`;
  const kind = model.calibrated ? "thresholds" : `threshold: ${model.threshold.toFixed(2)}`;
  at("auto-label").title = `The model's own ${kind}, tuned on validation documents`;
  const facts = Object.entries(model.metrics).map(([name, value]) => `${name} ${(100 * value).toFixed(1)}`);
  if (model.corpus) facts.unshift(`Corpus: ${model.corpus}`);
  if (model.licence) facts.push(`Licence: ${model.licence}`);
  at("facts").replaceChildren(...facts.map((fact) => element("span", "", fact)));
}

async function suggest() {
  clearTimeout(timer);
  const asked = text.value;
  unpin();
  if (!asked.trim()) return show(null, "");
  at("results").classList.add("busy");
  const started = performance.now();
  const k = Math.min(Math.max(Math.trunc(Number(at("k").value)) || 5, 1), 100);
  const threshold = at("auto").checked ? "auto" : Number(at("threshold").value);
  try {
    const answer = await call("v1/suggest", { text: asked, k, threshold, explain: true });
    show(answer.results[0], asked);
    const found = state.answer.labels.length;
    at("status").textContent = `${found} in ${Math.round(performance.now() - started)} ms`;
  } catch (error) {
    if (error.name !== "AbortError") complain(error instanceof TypeError ? "The service cannot be reached." : error.message);
  } finally {
    at("results").classList.remove("busy");
  }
}

function show(answer, asked) {
  Object.assign(state, { answer, asked });
  at("problem").hidden = true;
  at("status").textContent = "";
  at("copy").disabled = !answer;
  list.replaceChildren(...(answer?.labels ?? []).map(row));
  const empty = at("empty");
  empty.hidden = Boolean(answer?.labels.length && answer.known);
  if (!answer) empty.textContent = "Labels appear here, the best first.";
  else if (!answer.known) empty.textContent = "The model knows no word of this text: every such text gets these labels.";
  else empty.textContent = "No label has this score: lower the threshold.";
}

function row(tag) {
  const button = element("button", "");
  button.type = "button";
  button.setAttribute("aria-pressed", "false");
  const track = element("span", "track");
  const bar = element("i", "");
  bar.style.setProperty("--score", tag.score);
  track.append(bar);
  button.append(element("span", "name", tag.label), element("span", "score", tag.score.toFixed(3)), track);
  button.addEventListener("mouseenter", () => highlight(tag));
  button.addEventListener("focus", () => highlight(tag));
  button.addEventListener("mouseleave", () => highlight(state.pinned));
  button.addEventListener("blur", () => highlight(state.pinned));
  button.addEventListener("click", () => {
    const again = state.pinned === tag;
    unpin();
    if (again) return;
    state.pinned = tag;
    button.setAttribute("aria-pressed", "true");
    highlight(tag);
    marks.querySelector("mark")?.scrollIntoView({ block: "nearest" });
  });
  const item = element("li", "");
  item.append(button);
  return item;
}

function highlight(tag) {
  const shown = tag?.spans && text.value === state.asked ? pieces(state.asked, tag.spans) : [{ text: text.value }];
  marks.replaceChildren(
    ...shown.map((piece) => {
      if (!piece.weight) return document.createTextNode(piece.text);
      const mark = element("mark", "", piece.text);
      mark.style.setProperty("--weight", 0.12 + 0.58 * piece.weight);
      return mark;
    }),
    document.createTextNode("\n"), // the empty line that a text area has at its end
  );
}

function unpin() {
  state.pinned = null;
  for (const button of list.querySelectorAll("button")) button.setAttribute("aria-pressed", "false");
  highlight(null);
}

function complain(message) {
  show(null, "");
  at("empty").hidden = true;
  at("problem").hidden = false;
  at("problem").textContent = message;
}

function edited() {
  unpin();
  const words = text.value.match(/\S+/g)?.length ?? 0;
  at("size").textContent = words ? `${words.toLocaleString("en")} ${words === 1 ? "word" : "words"}` : "";
}

function open(number) {
  state.current = Math.min(Math.max(number, 0), state.documents.length - 1);
  at("pager").hidden = state.documents.length < 2;
  at("position").textContent = `${state.current + 1} of ${state.documents.length}`;
  at("previous").disabled = state.current === 0;
  at("next").disabled = state.current === state.documents.length - 1;
  text.value = state.documents[state.current] ?? "";
  sheet.scrollTop = 0;
  edited();
  return suggest();
}

async function read(file) {
  try {
    state.documents = documentsOf(file.name, await file.text());
    await open(0);
  } catch (error) {
    complain(`${file.name}: ${error.message}`);
  }
}

async function copy() {
  const content = JSON.stringify(state.answer, null, 2);
  try {
    await navigator.clipboard.writeText(content);
  } catch {
    // Without https, browsers have no clipboard but that of a selection.
    const area = element("textarea", "", content);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  at("copy").textContent = "Copied";
  setTimeout(() => (at("copy").textContent = "Copy JSON"), 1500);
}

function element(name, kind, content = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.textContent = content;
  return made;
}

text.addEventListener("input", () => {
  edited();
  clearTimeout(timer);
  timer = setTimeout(suggest, PAUSE);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) suggest();
  if (event.key === "Escape") unpin();
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && list.contains(event.target)) {
    const buttons = [...list.querySelectorAll("button")];
    buttons[buttons.indexOf(event.target) + step]?.focus();
    event.preventDefault();
  }
});
at("suggest").addEventListener("click", suggest);
at("copy").addEventListener("click", copy);
at("clear").addEventListener("click", () => {
  state.documents = [];
  open(0);
  text.focus();
});
at("previous").addEventListener("click", () => open(state.current - 1));
at("next").addEventListener("click", () => open(state.current + 1));
at("file").addEventListener("change", (event) => {
  if (event.target.files[0]) read(event.target.files[0]);
  event.target.value = "";
});
at("k").addEventListener("change", suggest);
at("threshold").addEventListener("input", () => (at("least").textContent = Number(at("threshold").value).toFixed(2)));
at("threshold").addEventListener("change", suggest);
at("auto").addEventListener("change", () => {
  at("threshold").disabled = at("auto").checked;
  suggest();
});
at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = at("token").value;
  at("token").value = "";
  start();
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) read(event.dataTransfer.files[0]);
  });
}

async function start() {
  try {
    at("problem").hidden = true;
    await describe();
    await suggest();
  } catch (error) {
    complain(error.message);
  }
}

edited();
start();
