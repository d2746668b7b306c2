"use strict";

/* Shows the OpenAPI document as a page: all addresses, each with an example to send. */

const LINE_WIDTH = 56;  // characters of a line of JSON

/* Formats JSON. A value that fits on one line takes one line, and so does any list of numbers. */
function formatJSON(value, indent = "") {
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const list = Array.isArray(value), [start, end] = list ? "[]" : "{}";
  const label = (name) => (list ? "" : `${JSON.stringify(name)}: `);
  const entries = Object.entries(value), inner = `${indent}  `;
  const simple = list && value.every((v) => typeof v !== "object" || v === null);
  if (simple || JSON.stringify(value).length + indent.length <= LINE_WIDTH) {
    return start + entries.map(([name, v]) => label(name) + formatJSON(v)).join(", ") + end;
  }
  const lines = entries.map(([name, v]) => inner + label(name) + formatJSON(v, inner));
  return `${start}\n${lines.join(",\n")}\n${indent}${end}`;
}

const terms = (pairs) => make("dl", {}, ...pairs.flatMap(([term, words]) => {
  return [make("dt", {}, term), make("dd", {}, words)];
}));

/* Lists the columns of a row and their possible values, if the document has them. */
function columnTerms({ schema }) {
  const properties = (about) => (about?.anyOf ?? [about]).find((one) => one?.properties)?.properties;
  const known = properties(properties(schema)?.instances?.items);
  if (!known) return [];
  const pairs = Object.entries(known).map(([name, about]) => {
    const categories = (about.enum ?? about.examples)?.filter((category) => category !== null);
    return [name, `${categories ? categories.join(", ") : "number"} or null`];
  });
  return [make("h3", {}, "Columns"), terms(pairs)];
}

async function send(path, body, status, answer) {
  const start = performance.now();
  let text = "";
  try {
    const headers = { "Content-Type": "application/json" };
    const response = await request(path.slice(1), body === null ? {} : { method: "POST", headers, body });
    text = await response.text();
    const taken = performance.now() - start;
    status.textContent = `${response.status} · ${taken.toFixed(taken < 10 ? 1 : 0)} ms`;
    status.classList.toggle("error", !response.ok);
  } catch (error) {
    status.textContent = `No answer: ${error.message}`;
    status.classList.add("error");
  }
  try {
    text = formatJSON(JSON.parse(text));
  } catch { /* An answer that is not JSON is shown unchanged. */ }
  answer.textContent = text;
  answer.hidden = text === "";
}

function operation(path, method, about, guarded) {
  const asking = make("div"), answering = make("div");
  const button = make("button", { type: "button", class: "primary" }, "Send");
  let body = null;
  if (about.requestBody) {
    const content = about.requestBody.content["application/json"], text = formatJSON(content.example);
    const rows = Math.min(16, text.split("\n").length);
    body = make("textarea", { spellcheck: "false", rows, "aria-label": `Body for ${path}` }, text);
    asking.append(make("h3", {}, "Body"), body, button, ...columnTerms(content));
  } else {
    asking.append(button);
  }
  const status = make("span", { class: "status", role: "status" });
  const answer = make("pre", { tabindex: "0", "aria-label": `Answer from ${path}`, hidden: true });
  const meanings = Object.entries(about.responses).filter(([code]) => code !== "401" || guarded);
  answering.append(make("h3", {}, "Answer", status), answer);
  answering.append(terms(meanings.map(([code, { description }]) => [code, description])));
  button.addEventListener("click", () => send(path, body && body.value, status, answer));
  return make(
    "details",
    {},
    make(
      "summary",
      {},
      make("span", { class: `method ${method}` }, method.toUpperCase()),
      make("code", {}, path),
      make("span", { class: "quiet" }, about.summary),
    ),
    make("div", { class: "operation" }, asking, answering),
  );
}

/* Makes one card per model, with POST first, and one card for the server. */
function cards({ paths, security }) {
  const groups = new Map();
  for (const [path, methods] of Object.entries(paths)) {
    const name = path.match(/^\/v[12]\/models\/([^/:]+)/)?.[1] ?? "";
    for (const [method, about] of Object.entries(methods)) {
      const line = operation(path, method, about, Boolean(security) && about.security?.length !== 0);
      const group = groups.get(name) ?? groups.set(name, []).get(name);
      group.push([method === "post" ? 0 : 1, line]);
    }
  }
  const ordered = [...groups].sort(([a], [b]) => (a === "") - (b === ""));
  return ordered.map(([name, lines]) => {
    const sorted = lines.sort(([a], [b]) => a - b).map(([, line]) => line);
    return make("section", {}, make("h2", {}, name || "Server"), make("div", { class: "card" }, ...sorted));
  });
}

async function show() {
  try {
    const response = await request("openapi.json");
    if (response.status === 401) return signIn();
    if (!response.ok) return say(`The server answered ${response.status}.`, "error");
    const about = await response.json();
    say("");
    find("sign-in").hidden = true;
    find("document").hidden = Boolean(about.security);  // A link cannot send the token.
    find("lead").textContent = `${about.info.description} Version ${about.info.version}.`;
    find("operations").replaceChildren(...cards(about));
  } catch (error) {
    say(`No answer: ${error.message}`, "error");
  }
}

onSignIn(show);
show();
