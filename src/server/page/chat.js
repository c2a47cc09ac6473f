"use strict";

// A chat with the server that served this page. Nothing is stored but the settings, in this browser.

const byId = (id) => document.getElementById(id);
const messagesView = byId("messages");
const input = byId("input");
const settingsForm = byId("settings").querySelector("form");
const kSettingsKey = "tandem.settings";
const kDefaults = { system: "", thinking: false, tint: true };
const kNumbers = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "draft_length"];

let conversation = []; // messages as the API knows them, without the system prompt
let running = null; // the AbortController of the answer that is being written

// ---- Settings

function loadSettings() {
  let saved = {};
  try {
    saved = JSON.parse(localStorage.getItem(kSettingsKey)) || {};
  } catch {
    // Storage is off or holds something else: the defaults do.
  }
  return { ...kDefaults, ...saved };
}

function showSettings(settings) {
  for (const field of settingsForm.elements) {
    if (!field.name) continue;
    if (field.type === "checkbox") field.checked = Boolean(settings[field.name]);
    else field.value = settings[field.name] ?? "";
  }
  messagesView.classList.toggle("tinted", Boolean(settings.tint));
}

function readSettings() {
  const settings = {};
  for (const field of settingsForm.elements) {
    if (!field.name) continue;
    settings[field.name] = field.type === "checkbox" ? field.checked : field.value;
  }
  return settings;
}

function saveSettings() {
  const settings = readSettings();
  messagesView.classList.toggle("tinted", settings.tint);
  try {
    localStorage.setItem(kSettingsKey, JSON.stringify(settings));
  } catch {
    // They hold until the page is closed.
  }
}

function requestHeaders(settings) {
  const headers = { "Content-Type": "application/json" };
  if (settings.api_key) headers.Authorization = "Bearer " + settings.api_key;
  return headers;
}

function requestBody(settings) {
  const messages = settings.system
    ? [{ role: "system", content: settings.system }, ...conversation]
    : conversation;
  const body = {
    messages,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
    chat_template_kwargs: { enable_thinking: settings.thinking },
  };
  for (const name of kNumbers) {
    if (settings[name] !== "" && settings[name] !== undefined) body[name] = Number(settings[name]);
  }
  return body;
}

// ---- The stream

/** Yields the data of each server-sent event of `response`. */
async function* eventsOf(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += decoder.decode(value, { stream: true });
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const event = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      for (const line of event.split("\n")) {
        if (line.startsWith("data: ")) yield line.slice(6);
      }
    }
  }
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "The server answered " + response.status + ".";
  }
}

/** Sends the conversation and shows what comes. The answer joins the conversation. */
async function answer() {
  const settings = readSettings();
  const asked = conversation; // a new one may begin meanwhile
  const view = new AnswerView();
  running = new AbortController();
  showRunning(true);
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: requestHeaders(settings),
      body: JSON.stringify(requestBody(settings)),
      signal: running.signal,
    });
    if (!response.ok) throw new Error(await errorOf(response));
    for await (const data of eventsOf(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      view.add(chunk);
    }
    view.finish("");
  } catch (error) {
    view.finish(error.name === "AbortError" ? "stopped" : error.message, error.name);
  } finally {
    running = null;
    showRunning(false);
    if (view.content) asked.push({ role: "assistant", content: view.content });
  }
}

// ---- What is shown

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function addMessage(role) {
  byId("welcome")?.remove();
  const node = element("article", "message " + role);
  node.append(element("span", "hidden", role === "user" ? "You: " : "Model: "));
  messagesView.append(node);
  return node;
}

/** Runs `change` and keeps the end in view if it was. */
function keepingTheEndInView(change) {
  const hidden = messagesView.scrollHeight - messagesView.scrollTop - messagesView.clientHeight;
  change();
  if (hidden < 40) messagesView.scrollTop = messagesView.scrollHeight;
}

/** An answer that is being written. */
class AnswerView {
  constructor() {
    this.content = "";
    this.reasoning = "";
    this.usage = null;
    this.accepted = 0;
    this.start = 0;
    this.node = addMessage("model");
    this.node.classList.add("running");
    this.text = element("div", "text");
    this.figures = element("div", "figures");
    this.node.append(this.text, this.figures);
  }

  add(chunk) {
    keepingTheEndInView(() => {
      const usage = chunk.usage;
      const accepted = usage?.completion_tokens_details?.accepted_prediction_tokens ?? 0;
      const delta = chunk.choices[0]?.delta ?? {};
      if (delta.reasoning_content) this.addThought(delta.reasoning_content);
      if (delta.content) this.addText(delta.content, accepted > this.accepted);
      for (const call of delta.tool_calls ?? []) {
        this.addText((call.function.name ?? "") + call.function.arguments, false);
      }
      this.accepted = accepted;
      if (usage) this.showFigures(usage);
    });
  }

  addText(text, isDrafted) {
    this.content += text;
    this.text.append(element("span", isDrafted ? "drafted" : "", text));
  }

  addThought(text) {
    if (!this.thought) {
      const details = element("details", "thought");
      this.thought = element("div");
      details.append(element("summary", "", "Thinking"), this.thought);
      this.node.insertBefore(details, this.text);
    }
    this.reasoning += text;
    this.thought.append(text);
  }

  showFigures(usage) {
    const now = performance.now();
    const details = usage.completion_tokens_details ?? {};
    if (!this.start && usage.completion_tokens > 0) {
      this.start = now;
      this.first = usage.completion_tokens;
    }
    const parts = [usage.completion_tokens + " tokens"];
    const seconds = (now - this.start) / 1000;
    if (this.start && seconds > 0.05) {
      parts.push(((usage.completion_tokens - this.first) / seconds).toFixed(1) + " tok/s");
    }
    if (details.drafted_tokens > 0) {
      const share = (100 * details.accepted_prediction_tokens) / details.drafted_tokens;
      parts.push(share.toFixed(0) + " % of drafts accepted");
    }
    if (usage.prompt_tokens_details?.cached_tokens > 0) {
      const cached = usage.prompt_tokens_details.cached_tokens;
      parts.push(cached + " of " + usage.prompt_tokens + " prompt tokens cached");
    }
    this.figures.textContent = parts.join(" · ");
  }

  finish(note, kind) {
    this.node.classList.remove("running");
    if (note && kind !== "AbortError") this.node.append(element("p", "error", note));
    else if (note) this.figures.append(" · " + note);
    showCodeBlocks(this.text);
  }
}

/** Puts what stands between lines of three backquotes into blocks of their own. */
function showCodeBlocks(node) {
  const parts = node.textContent.split(/^```[^\n]*\n?/m);
  if (parts.length < 3) return;
  node.replaceChildren(
    ...parts.map((part, i) =>
      i % 2 === 1 ? element("pre", "", part.replace(/\n$/, "")) : element("span", "", part),
    ),
  );
}

function showRunning(isRunning) {
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  byId("status").textContent = isRunning ? "Answering. Escape stops." : "";
  messagesView.setAttribute("aria-busy", String(isRunning));
}

function fitInput() {
  input.style.height = "auto";
  input.style.height = input.scrollHeight + 2 + "px";
}

async function showModel() {
  try {
    const response = await fetch("v1/models", { headers: requestHeaders(readSettings()) });
    if (!response.ok) throw new Error(await errorOf(response));
    byId("model").textContent = (await response.json()).data[0].id;
    byId("status").textContent = "";
  } catch (error) {
    byId("status").textContent = error.message;
  }
}

// ---- What the user does

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value.trim();
  if (!text || running) return;
  input.value = "";
  fitInput();
  conversation.push({ role: "user", content: text });
  addMessage("user").append(element("div", "text", text));
  messagesView.scrollTop = messagesView.scrollHeight;
  answer();
});
input.addEventListener("input", fitInput);
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});
byId("stop").addEventListener("click", () => {
  running?.abort();
  input.focus();
});
byId("new-chat").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  messagesView.replaceChildren();
  input.focus();
});
byId("open-settings").addEventListener("click", () => byId("settings").showModal());
byId("reset").addEventListener("click", () => {
  showSettings({ ...kDefaults, api_key: readSettings().api_key });
});
byId("settings").addEventListener("close", () => {
  saveSettings();
  showModel();
  input.focus();
});

showSettings(loadSettings());
showModel();
