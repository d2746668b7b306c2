"use strict";

/* Loads a model, shows it with table.js or images.js, and tells how accurate its values are. */

const LEVEL = 1.645;  // standard errors to each side of a value for a 90 % interval

const minus = (shown) => shown.replace("-", "−");
const plain = (value, digits) => minus(value.toFixed(digits));
const signed = (value, digits) => (value < 0 ? "" : "+") + plain(value, digits);
const rounded = (v) => (v < 10 ? Number(v.toPrecision(2)) : v.toFixed(1));
const percent = (share) => `${rounded(100 * share)}\u00a0%`;  // a space without a line break

/* Returns the number of decimals with which numbers of this size have four digits. */
const digitsFor = (largest) => Math.min(9, Math.max(0, 3 - Math.floor(Math.log10(largest || 1))));

// ---- models

const stored = globalThis.fastshapleyModels;  // models of a page without a server, from model.js

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

class PageModel {
  constructor(name, buffer, rows) {
    this.name = name;
    this.rows = rows;
    this.graph = new OnnxGraph(buffer);
    this.about = this.graph.about;
    if (!this.about) throw new Error(`${name} is an ONNX graph, but fastshapley did not export it.`);
    this.imitated = this.about.sums_to === "surrogate";  // whether predictions are the surrogate's
    this.needsOutputs = this.graph.inputs.length > 1 && !this.imitated;
    const missing = this.graph.unsupported;
    const which = `the operator${missing.length > 1 ? "s" : ""} ${missing.join(", ")}`;
    this.trouble = missing.length ? `This page does not support ${which}` : "";  // why the page cannot compute
  }

  static async load(name) {
    if (stored) {
      const letters = atob(stored[name].graph), bytes = new Uint8Array(letters.length);
      for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
      return new PageModel(name, bytes.buffer, stored[name].rows);
    }
    const path = `models/${encodeURIComponent(name)}`;
    const [graph, rows] = await Promise.all([ask(`${path}.onnx`), ask(`${path}.rows.json`)]);
    return new PageModel(name, await graph.arrayBuffer(), await rows.json());
  }

  /* Runs the graph in the page, or on the server if the page cannot. Outputs that are not given are not known. */
  async compute(given) {
    const inputs = { ...given };
    if (this.graph.inputs.length > 1 && !inputs.outputs) {
      const dims = [given.rows.dims[0], this.about.output_names.length];
      inputs.outputs = { dims, data: Array(dims[0] * dims[1]).fill(NaN) };
    }
    if (!this.trouble) {
      try {
        return this.graph.run(inputs);
      } catch (error) {
        this.trouble = `This page cannot run the graph (${error.message})`;
      }
    }
    if (stored) throw new Error(`${this.trouble}. "fastshapley serve" can show this model.`);
    say(`${this.trouble}, so the server computes the values.`);
    find("where").textContent = "Computed by the server.";
    return this.infer(inputs);
  }

  async infer(inputs) {
    const given = this.graph.inputs.map(({ name, type }) => ({
      name,
      shape: inputs[name].dims,
      datatype: type === "float" ? "FP32" : "FP64",
      data: Array.from(inputs[name].data),  // JSON has null for NaN: a missing value, or an unknown output.
    }));
    const path = `v2/models/${encodeURIComponent(this.name)}/infer`;
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ inputs: given });
    const { outputs } = await (await ask(path, { method: "POST", headers, body })).json();
    return Object.fromEntries(outputs.map(({ name, shape, data }) => [name, { dims: shape, data }]));
  }
}

/* Computes and shows values. If inputs change while the page computes, only the last ones are used. */
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

// ---- links and accuracy

const CLIP = 1e-7;  // smallest distance of probabilities from 0 and 1, as in the library
const clipped = (v) => Math.min(Math.max(v, CLIP), 1 - CLIP);
const LINKS = {
  identity: { apply: (v) => v },
  logit: { apply: (v) => Math.log(clipped(v) / (1 - clipped(v))), undo: (v) => 1 / (1 + Math.exp(-v)) },
  log: { apply: (v) => Math.log(Math.max(v, CLIP)), undo: (v) => Math.exp(v) },
};

function scaleOf({ link, scale }) {
  if (link === "logit") return "on the scale of log-odds";
  if (link === "log") return "on the scale of the logarithm of the output";
  return scale === "real" ? "in the units of the model's output" : "on the scale of probabilities";
}

/* Fields for the model's outputs, which explanations of the model itself need. */
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
        if (scale === "probabilities" && outputs.length === 2) {  // Two probabilities sum to one.
          this.values[1 - i] = 1 - field.valueAsNumber;
          this.fields[1 - i].value = Number(this.values[1 - i].toFixed(9));
        }
        changed();
      });
      return field;
    });
    const labels = outputs.map((name, i) => make("label", { for: `output-${i}` }, name, this.fields[i]));
    const why = [
      "These values explain the model itself, which is not in this page.",
      "They sum to the model's output minus the base value. Enter the model's output.",
    ].join(" ");
    this.element = make(
      "fieldset",
      { id: "outputs" },
      make("legend", {}, "Output of the model"),
      make("p", { class: "quiet" }, why),
      make("div", { class: "line" }, ...labels),
    );
  }

  tensor() {
    return { dims: [1, this.values.length], data: this.values.map(LINKS[this.about.link].apply) };
  }

  /* Starts from the base value if the row is new, so that the values sum to zero. Returns whether it did. */
  startsFrom({ base_values: base }) {
    if (!this.anew) return false;
    this.anew = false;
    this.values = Array.from(base.data, LINKS[this.about.link].undo ?? ((v) => v));
    this.fields.forEach((field, i) => (field.value = Number(this.values[i].toPrecision(6))));
    this.changed();
    return true;
  }
}

/* Warns as trust/report.py does, for files that do not hold the warnings themselves. */
function oldWarnings(report) {
  const warnings = [], known = (v) => v !== null && v !== undefined;
  const { rows, held_out: heldOut, relative_squared_error: relative, sign_agreement: signs } = report;
  const { fidelity, game_error: game, mean_squared_value: squares } = report;
  if (!heldOut) warnings.push("Values of new rows have a larger error than was measured here.");
  else if (rows < 20) warnings.push(`Only ${rows} row${rows === 1 ? " was" : "s were"} measured.`);
  if (relative > 0.1) {
    const off = percent(Math.sqrt(relative));
    warnings.push(`The error is ${off} of the size of the values: trust only the largest values of a row.`);
  }
  if (known(game) && squares > 0 && game / squares > 0.1) {
    const off = percent(Math.sqrt(game / squares));
    warnings.push(`The game's error is about ${off} of the size of the values: they describe the model only roughly.`);
  }
  if (known(signs) && signs < 0.9) warnings.push(`${percent(1 - signs)} of the large values have the wrong sign.`);
  if (known(fidelity) && fidelity < 0.9) {
    warnings.push("The surrogate differs a lot from the model, so these values explain a different model.");
  }
  return warnings;
}

/* Tells what the report says about the values. */
function accuracy({ report }) {
  const title = make("h2", {}, "Accuracy of these values");
  if (!report) return [title, make("p", {}, "The error of these values was not measured.")];
  const paragraphs = [], warnings = [], known = (v) => v !== null && v !== undefined;
  const { rows, truth, held_out: heldOut, relative_squared_error: relative, sign_agreement: signs } = report;
  const { fidelity, game_error: game, mean_squared_error: own } = report;
  const where = `${rows} ${heldOut ? "held-out rows" : "training rows"}`;
  const share = percent(Math.max(0, relative));
  const size = known(relative) ? `the squared error is ${share} of the squared size of the values` : "";
  const sign = known(signs) ? `${percent(signs)} of the large values have the right sign` : "";
  const found = [size, sign].filter(Boolean).join(", and ");
  if (found) paragraphs.push(`On ${where}, ${found} (reference: ${truth}).`);
  const round = (v) => Number(Math.max(0, v).toPrecision(2));
  if (game === 0) paragraphs.push("These values explain the model itself.");
  else if (known(fidelity)) {
    const said = fidelity === 1
      ? ["These values explain the model's expected output given what is known."]
      : [
        "These values explain a surrogate: a network that imitates the model. It explains",
        `${percent(Math.max(0, fidelity))} of the variance of the model's outputs.`,
      ];
    if (known(game) && known(own)) {
      said.push(`The mean squared error of a row's values is ${round(own)} for the network,`);
      said.push(`and about ${round(game)} more because the game is an estimate.`);
    }
    paragraphs.push(said.join(" "));
  }
  warnings.push(...(report.warnings ?? oldWarnings(report)));
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
  const model = await PageModel.load(name);
  if (turn !== state.turn) return;  // The reader has chosen another model meanwhile.
  say("");
  const images = !model.about.schema.columns;
  document.title = `${name} · Shapley values`;
  find("title").textContent = name;
  find("lead").textContent = images
    ? "How much each part of an image adds to each prediction."
    : "How much each column adds to the prediction. Change a value to see its effect.";
  const imitated = model.imitated ? "The predictions are a surrogate's estimates of the model's outputs." : "";
  find("sums").textContent = imitated;
  find("sums").hidden = !imitated;
  find("where").textContent = "Computed in your browser: what you enter stays on this page.";
  find("accuracy").replaceChildren(...accuracy(model.about));
  find("accuracy").hidden = false;
  find("view").replaceChildren();
  state.model = model;
  state.view = new (images ? ImageView : TableView)(model, find("view"));
}

async function start() {
  try {
    const known = await names();
    find("sign-in").hidden = true;
    if (!known.length) return say("This server has no models.", "error");
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
