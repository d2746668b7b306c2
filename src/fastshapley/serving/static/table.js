"use strict";

/* The page for tables: one line per player, with the controls of its columns and a bar for its value. */

/* One column: its controls, and the number that the graph takes, which is NaN for a missing value. */
class ColumnControls {
  constructor(about, number, range, changed) {
    this.name = String(about.key);
    this.id = `column-${number}`;
    this.categories = about.categories;
    this.choices = this.categories ?? (/^bool/.test(about.dtype) ? [false, true] : null);
    this.integral = /^u?int/i.test(about.inner || about.dtype);
    this.value = NaN;
    this.changed = changed;
    if (this.choices) this.makeList();
    else this.makeSlider(range);
    for (const control of this.controls) control.setAttribute("data-column", this.name);
  }

  /* Makes a list of categories to choose from. */
  makeList() {
    const options = this.choices.map((choice, code) => make("option", { value: code }, String(choice)));
    const select = make("select", { id: this.id }, make("option", { value: "" }, "missing"), ...options);
    select.addEventListener("input", () => this.take(select.value === "" ? NaN : Number(select.value)));
    this.controls = [select];
    this.typical = 0;
    this.show = () => (select.value = Number.isNaN(this.value) ? "" : this.value);
  }

  /* Makes a slider over the usual range, and a field for any number. An empty field is a missing value. */
  makeSlider(range) {
    const [low, middle, high] = range ?? [0, NaN, 0];
    const step = 10 ** Math.max(this.integral ? 0 : -12, Math.floor(Math.log10((high - low) / 100)));
    const grain = this.integral ? 1 : high > low ? step : "any";
    const field = make("input", { type: "number", id: this.id, placeholder: "missing", step: grain });
    field.addEventListener("input", () => this.take(field.valueAsNumber, field));
    this.controls = [field];
    this.typical = this.integral ? Math.round(middle) : Number(middle.toPrecision(4));
    let slider = null;
    if (high > low) {
      const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      const ends = [Math.floor(low / step), Math.ceil(high / step), 1];
      const [min, max, by] = ends.map((v) => (v * step).toFixed(places));
      slider = make("input", { type: "range", min, max, step: by, "aria-label": this.name });
      slider.addEventListener("input", () => this.take(slider.valueAsNumber, slider));
      this.controls.unshift(slider);
    }
    this.show = (source) => {
      const gap = Number.isNaN(this.value);
      if (source !== field) field.value = gap ? "" : this.value;
      if (!slider) return;
      if (source !== slider) slider.value = gap ? middle : this.value;
      slider.classList.toggle("missing", gap);
      slider.setAttribute("aria-valuetext", gap ? "missing" : String(this.value));
    };
  }

  take(value, source) {
    this.value = value;
    this.show(source);
    this.changed();
  }

  /* Sets a JSON value. An unknown category is a missing value. */
  set(given) {
    const code = this.categories ? this.categories.indexOf(given) : Number(given);
    const gap = given === null || given === undefined || !Number.isFinite(code) || (this.categories && code < 0);
    this.value = gap ? NaN : code;
    this.show();
  }
}

/* The line of one player. */
class PlayerLine {
  constructor(name, columns) {
    this.name = name;
    this.fill = make("span", { class: "fill" });
    this.whisker = make("span", { class: "whisker" });
    this.bar = make("div", { class: "bar", role: "img", "data-player": name }, this.fill, this.whisker);
    this.number = make("span", { class: "number" });
    const alone = columns.length === 1;
    const heading = make(alone ? "label" : "span", { class: "name", for: alone && columns[0].id }, name);
    const controls = columns.map((column) => {
      const label = alone ? [] : [make("label", { for: column.id }, column.name)];
      return make("div", { class: column.choices ? "control choice" : "control" }, ...label, ...column.controls);
    });
    this.element = make("li", {}, heading, make("div", { class: "controls" }, ...controls), this.bar, this.number);
  }

  show(value, error, extent, digits) {
    const place = (v) => 50 + (50 * v) / extent;
    const span = (element, from, to) => {
      element.style.left = `${place(from)}%`;
      element.style.width = `${place(to) - place(from)}%`;
    };
    span(this.fill, Math.min(0, value), Math.max(0, value));
    this.fill.classList.toggle("negative", value < 0);
    this.whisker.hidden = error === undefined;
    let words = `${this.name}: ${signed(value, digits)}`;
    delete this.bar.dataset.error;
    if (error !== undefined) {
      span(this.whisker, value - LEVEL * error, value + LEVEL * error);
      words += `, plus or minus ${plain(LEVEL * error, digits)}`;
      this.bar.dataset.error = error;
    }
    this.bar.dataset.value = value;
    this.bar.setAttribute("aria-label", words);
    this.number.textContent = signed(value, digits);
  }
}

class TableView {
  constructor(model, place) {
    const { schema, players, ranges, output_names: outputs } = model.about;
    this.model = model;
    this.outputNames = outputs;
    this.updates = new Updates(model, () => this.inputs(), (result) => this.show(result));
    const changed = () => this.updates.request();
    this.columns = schema.columns.map((about, i) => new ColumnControls(about, i, ranges?.[i], changed));
    this.players = players.names.map((name, i) => {
      return new PlayerLine(name, this.columns.filter((_, column) => players.owner[column] === i));
    });
    this.outputs = model.needsOutputs ? new Outputs(model, changed) : null;
    this.chosen = null;  // the output that the reader chose to explain
    this.build(place, players.owner.length ? [] : this.columns);
    this.choose();
  }

  build(place, loose) {
    const numbers = this.model.rows.map((_, i) => make("option", { value: i }, `Row ${i + 1}`));
    this.row = make("select", { id: "row" }, make("option", { value: "" }, "Typical row"), ...numbers);
    if (numbers.length) this.row.value = "0";
    this.row.addEventListener("input", () => this.choose());
    const again = make("button", { type: "button", id: "again" }, "Reset");
    again.addEventListener("click", () => this.choose());
    const names = this.outputNames.map((name, i) => make("option", { value: i }, name));
    this.output = make("select", { id: "output" }, ...names);
    this.output.addEventListener("input", () => {
      this.chosen = Number(this.output.value);
      this.fresh = true;
      this.show(this.result);
    });
    const outputs = make("div", { class: "line" }, make("label", { for: "output" }, "Explain output"), this.output);
    outputs.hidden = this.outputNames.length < 2;
    const choices = make(
      "div",
      { class: "choices" },
      make("div", { class: "line" }, make("label", { for: "row" }, "Start from"), this.row, again),
      outputs,
    );
    const term = (id, tag, words) => {
      const number = make(tag, { id }), note = make("small", { class: "quiet" });
      return { element: make("div", { class: "term" }, make("span", {}, words), number, note), number, note };
    };
    this.terms = {
      base: term("base", "b", "base value"),
      sum: term("sum", "b", `sum of ${this.players.length} values`),
      prediction: term("prediction", "output", "prediction"),
    };
    this.equals = make("span", { class: "sign" }, "=");
    const { base, sum, prediction } = this.terms;
    const plus = make("span", { class: "sign" }, "+");
    const equation = [base.element, plus, sum.element, this.equals, prediction.element];
    this.scale = make("p", { id: "scale", class: "quiet" }, scaleOf(this.model.about));
    this.note = make("p", { id: "note", class: "quiet" });
    this.list = make("ol", { id: "players" });
    const columns = loose.map((column) => {
      const label = make("label", { class: "name", for: column.id }, column.name);
      const control = make("div", { class: "control" }, ...column.controls);
      return make("li", {}, label, make("div", { class: "controls" }, control));
    });
    if (columns.length) place.append(make("ol", { class: "loose" }, ...columns));
    place.append(choices, ...(this.outputs ? [this.outputs.element] : []));
    const group = { class: "equation", role: "group", "aria-label": "Sum" };
    place.append(make("div", group, ...equation, this.scale), this.note, this.list);
  }

  /* Shows the chosen row. The lines are then sorted by the size of their values. */
  choose() {
    const given = this.model.rows[this.row.value];
    for (const column of this.columns) {
      if (given) column.set(given[column.name]);
      else column.set(column.choices ? column.choices[column.typical] : column.typical);
    }
    this.fresh = true;
    if (this.outputs) this.outputs.anew = true;
    this.updates.request();
  }

  inputs() {
    const rows = { dims: [1, this.columns.length], data: this.columns.map((column) => column.value) };
    return this.outputs ? { rows, outputs: this.outputs.tensor() } : { rows };
  }

  show(result) {
    const count = this.outputNames.length;
    if (this.outputs?.startsFrom(result)) return;
    this.result = result;
    const predictions = Array.from(result.predictions.data);
    if (this.fresh) {
      const highest = predictions.indexOf(Math.max(...predictions));
      this.shown = this.chosen ?? (count === 2 ? 1 : Math.max(0, highest));
      this.output.value = this.shown;
    }
    const of = (name) => this.players.map((_, i) => result[name].data[i * count + this.shown]);
    const values = of("shap_values"), learnt = result.error_std ? of("error_std") : [];
    const outside = learnt.some(Number.isNaN), errors = outside ? [] : learnt;
    const base = result.base_values.data[this.shown], prediction = predictions[this.shown];
    const reach = Math.max(...values.map((value, i) => Math.abs(value) + LEVEL * (errors[i] ?? 0)), 1e-12);
    // The scale does not shrink while the reader changes values.
    this.extent = this.fresh ? reach : Math.max(this.extent, reach);
    if (this.fresh) {
      this.digits = digitsFor(Math.max(Math.abs(base), Math.abs(prediction), reach));
      const order = this.players.map((_, i) => i).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
      this.list.replaceChildren(...order.map((i) => this.players[i].element));
    }
    this.fresh = false;
    this.players.forEach((player, i) => player.show(values[i], errors[i], this.extent, this.digits));
    this.add(base, values.reduce((a, b) => a + b, 0), prediction, errors.length > 0, outside);
  }

  add(base, sum, prediction, whiskers, outside) {
    const undo = LINKS[this.model.about.link].undo;
    for (const [name, value] of Object.entries({ base, sum, prediction })) {
      const { number, note } = this.terms[name];
      number.dataset.value = value;
      number.textContent = (name === "sum" ? signed : plain)(value, this.digits);
      if (undo && name !== "sum") note.textContent = `probability ${Number(undo(value).toPrecision(3))}`;
    }
    const off = Math.abs(base + sum - prediction) > 1e-4 * Math.max(1, Math.abs(prediction));
    this.equals.textContent = off ? "≈" : "=";
    const several = this.outputNames.length > 1 ? ` “${this.outputNames[this.shown]}”` : "";
    this.note.textContent = [
      `Bars to the right raise the prediction${several}, bars to the left lower it.`,
      whiskers ? "About 90 % of the exact values lie within the whiskers." : "",
      outside ? "A number is outside of the range of the training rows, where the error of the values is unknown." : "",
      off ? "The values of this explainer are not normalised, so they do not add up to the prediction." : "",
    ].filter(Boolean).join(" ");
  }
}
