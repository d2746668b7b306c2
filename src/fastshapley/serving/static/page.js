"use strict";

/* Which model is shown, where it comes from, and what is known of its error. The rest is table.js and images.js. */

const LEVEL = 1.645;  // standard errors to either side of a value, within which 90 % of the exact ones lie

const minus = (shown) => shown.replace("-", "−");
const plain = (value, digits) => minus(value.toFixed(digits));
const signed = (value, digits) => (value < 0 ? "" : "+") + plain(value, digits);
const rounded = (v) => (v < 10 ? Number(v.toPrecision(2)) : v.toFixed(1));
const percent = (share) => `${rounded(100 * share)}\u00a0%`;  // which is not broken between lines

/* So many digits after the point that numbers of this size have four. */
const digitsFor = (largest) => Math.min(9, Math.max(0, 3 - Math.floor(Math.log10(largest || 1))));

// ---- where models come from

const stored = globalThis.fastshapleyModels;  // those of a page with no server, which are in a script beside it

async function ask(path, options = {}) {
  const response = await request(path, options);
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  const message = error ?? `${path}: ${response.status} ${response.statusText}`;
  throw Object.assign(new Error(message), { unauthorized: response.status === 401 });
}

async function names() {
  return stored ? Object.keys(stored) : (await (await ask("v1/models")).json()).models;
}

class Model {
  constructor(name, buffer, rows) {
    this.name = name;
    this.rows = rows;
    this.graph = new Graph(buffer);
    this.about = this.graph.about;
    if (!this.about) throw new Error(`${name} is an ONNX graph, but not one that fastshapley exported.`);
    this.needsOutputs = this.graph.inputs.length > 1;
    const missing = this.graph.unsupported;
    const which = `the operator${missing.length > 1 ? "s" : ""} ${missing.join(", ")}`;
    this.trouble = missing.length ? `This page does not know ${which}` : "";  // why it cannot compute
  }

  static async load(name) {
    if (stored) {
      const letters = atob(stored[name].graph), bytes = new Uint8Array(letters.length);
      for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
      return new Model(name, bytes.buffer, stored[name].rows);
    }
    const path = `models/${encodeURIComponent(name)}`;
    const [graph, rows] = await Promise.all([ask(`${path}.onnx`), ask(`${path}.rows.json`)]);
    return new Model(name, await graph.arrayBuffer(), await rows.json());
  }

  /* The graph's outputs, from here; from the server where an operator is not known here, and there is one. */
  async compute(inputs) {
    if (!this.trouble) {
      try {
        return this.graph.run(inputs);
      } catch (error) {
        this.trouble = `This page cannot run the graph (${error.message})`;
      }
    }
    if (stored) throw new Error(`${this.trouble}. "fastshapley serve" can show this model.`);
    say(`${this.trouble}: the values come from the server.`);
    find("where").textContent = "Computed by the server.";
    return this.infer(inputs);
  }

  async infer(inputs) {
    const given = this.graph.inputs.map(({ name, type }) => ({
      name,
      shape: inputs[name].dims,
      datatype: type === "float" ? "FP32" : "FP64",
      data: Array.from(inputs[name].data),  // in JSON a gap, which is NaN, is null
    }));
    const path = `v2/models/${encodeURIComponent(this.name)}/infer`;
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ inputs: given });
    const { outputs } = await (await ask(path, { method: "POST", headers, body })).json();
    return Object.fromEntries(outputs.map(({ name, shape, data }) => [name, { dims: shape, data }]));
  }
}

/* Computes and shows, one after the other: of inputs that come meanwhile, only the last ones count. */
class Updates {
  constructor(model, inputs, show) {
    Object.assign(this, { model, inputs, show, busy: false, again: false });
  }

  async request() {
    this.again = true;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.again) {
        this.again = false;
        const result = await this.model.compute(this.inputs());
        if (!this.again) this.show(result);
      }
    } catch (error) {
      failed(error);
    } finally {
      this.busy = false;
    }
  }
}

// ---- what values mean

const CLIP = 1e-7;  // as in the library: so far probabilities are kept from 0 and 1
const clipped = (v) => Math.min(Math.max(v, CLIP), 1 - CLIP);
const LINKS = {
  identity: { apply: (v) => v },
  logit: { apply: (v) => Math.log(clipped(v) / (1 - clipped(v))), undo: (v) => 1 / (1 + Math.exp(-v)) },
  log: { apply: (v) => Math.log(Math.max(v, CLIP)), undo: (v) => Math.exp(v) },
};

function scaleOf({ link, scale }) {
  if (link === "logit") return "on the scale of log-odds";
  if (link === "log") return "on the scale of the output's logarithm";
  return scale === "real" ? "in the units of the model's output" : "on the scale of probabilities";
}

/* Fields for what the model gives, of a game that only the model itself can play. */
class Outputs {
  constructor(model, changed) {
    this.about = model.about;
    this.changed = changed;
    this.anew = false;
    this.values = this.about.output_names.map(() => 0);
    const { scale, output_names: outputs } = this.about;
    this.fields = outputs.map((name, i) => {
      const bounds = scale === "real" ? {} : { min: 0, max: 1, step: 0.01 };
      const field = make("input", { type: "number", id: `output-${i}`, step: "any", ...bounds });
      field.addEventListener("input", () => {
        if (Number.isNaN(field.valueAsNumber)) return;
        this.values[i] = field.valueAsNumber;
        if (scale === "probabilities" && outputs.length === 2) {  // of two, one tells the other
          this.values[1 - i] = 1 - field.valueAsNumber;
          this.fields[1 - i].value = Number(this.values[1 - i].toFixed(9));
        }
        changed();
      });
      return field;
    });
    const labels = outputs.map((name, i) => make("label", { for: `output-${i}` }, name, this.fields[i]));
    const why = [
      "These values are of the model itself, which is not in this page:",
      "they sum to its output minus the base value. Type what it gives.",
    ].join(" ");
    this.element = make(
      "fieldset",
      { id: "outputs" },
      make("legend", {}, "What the model gives"),
      make("p", { class: "quiet" }, why),
      make("div", { class: "line" }, ...labels),
    );
  }

  tensor() {
    return { dims: [1, this.values.length], data: this.values.map(LINKS[this.about.link].apply) };
  }

  /* Whether all is to be anew, and so starts from the base value, with which values sum to nothing. */
  startsFrom({ base_values: base }) {
    if (!this.anew) return false;
    this.anew = false;
    this.values = Array.from(base.data, LINKS[this.about.link].undo ?? ((v) => v));
    this.fields.forEach((field, i) => (field.value = Number(this.values[i].toPrecision(6))));
    this.changed();
    return true;
  }
}

/* What the report says of the values, in plain words; the limits are those that report.py warns at. */
function certificate({ report }) {
  const title = make("h2", {}, "How far these values are off");
  if (!report) return [title, make("p", {}, "The error of these values was not measured.")];
  const paragraphs = [], warnings = [], known = (v) => v !== null && v !== undefined;
  const { rows, truth, held_out: heldOut, relative_squared_error: relative, sign_agreement: signs } = report;
  const { fidelity, surrogate_error: surrogate, mean_squared_error: own } = report;
  const where = `${rows} ${heldOut ? "rows that were held out" : "of the rows that it was trained on"}`;
  const share = percent(Math.max(0, relative));
  const size = known(relative) ? `their squared error is ${share} of their squared size` : "";
  const sign = known(signs) ? `${percent(signs)} of the large ones have the right sign` : "";
  const found = [size, sign].filter(Boolean).join(", and ");
  if (found) paragraphs.push(`On ${where}, ${found} (truth: ${truth}).`);
  if (surrogate === 0) paragraphs.push("They are values of the model itself.");
  else if (known(fidelity)) {
    const round = (v) => Number(Math.max(0, v).toPrecision(2));
    const parts = [
      "They explain a surrogate: a network that imitates the model, and accounts for",
      `${percent(Math.max(0, fidelity))} of the variance of its outputs.`,
    ];
    if (known(surrogate) && known(own)) {
      parts.push(`The mean squared error of a row's values is ${round(own)} to those of the surrogate,`);
      parts.push(`and about ${round(surrogate)} more to those of the model.`);
    }
    paragraphs.push(parts.join(" "));
  }
  if (!heldOut) warnings.push("Values of new rows are further off than was measured here.");
  else if (rows < 20) warnings.push(`${rows} row${rows === 1 ? " is" : "s are"} little to go by.`);
  if (relative > 0.1) {
    const off = percent(Math.sqrt(relative));
    warnings.push(`Values are off by ${off} of their size: trust the largest of a row at most.`);
  }
  if (known(signs) && signs < 0.9) warnings.push(`${percent(1 - signs)} of the large values have the wrong sign.`);
  if (known(fidelity) && fidelity < 0.9) {
    warnings.push("The surrogate is far from the model: these values explain another one.");
  }
  return [
    title,
    ...warnings.map((warning) => make("p", { class: "warning" }, warning)),
    ...paragraphs.map((paragraph) => make("p", {}, paragraph)),
  ];
}

// ---- the page

const state = { model: null, view: null, turn: 0 };

function failed(error) {
  if (error.unauthorized) signIn();
  else say(error.message, "error");
}

async function openModel(name) {
  const turn = ++state.turn;
  say("Loading …");
  const model = await Model.load(name);
  if (turn !== state.turn) return;  // another has been chosen meanwhile
  say("");
  const images = !model.about.schema.columns;
  document.title = `${name} · Shapley values`;
  find("title").textContent = name;
  find("lead").textContent = images
    ? "What each part of a picture adds to each prediction."
    : "What each column adds to the prediction. Change a value, and see.";
  find("where").textContent = "Computed in your browser: what you enter stays on this page.";
  find("certificate").replaceChildren(...certificate(model.about));
  find("certificate").hidden = false;
  find("view").replaceChildren();
  state.model = model;
  state.view = new (images ? ImageView : TableView)(model, find("view"));
}

async function start() {
  try {
    const known = await names();
    find("sign-in").hidden = true;
    if (!known.length) return say("There is no model here.", "error");
    find("model").replaceChildren(...known.map((name) => make("option", {}, name)));
    find("models").hidden = known.length < 2;
    await openModel(known[0]);
  } catch (error) {
    failed(error);
  }
}

find("model").addEventListener("change", () => openModel(find("model").value).catch(failed));
onSignIn(start);
if (!stored) find("docs").href = "docs";
find("docs").hidden = Boolean(stored);
start();
