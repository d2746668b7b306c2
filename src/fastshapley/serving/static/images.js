"use strict";

/* The page for images: the user drops an image, and the page shows each class's values on top of it. */

const COLOURS = { positive: [255, 0, 81], negative: [0, 139, 251] };  // shap's colours
const FIRST_CLASSES = 24;  // classes that are shown before the user asks for all

class ImageView {
  constructor(model, place) {
    const { schema, players } = model.about;
    this.model = model;
    [this.channels, this.height, this.width] = schema.shape;
    const counts = players.names.map(() => 0);
    for (const owner of players.owner) counts[owner]++;
    this.share = counts.map((pixels) => 1 / pixels);
    this.updates = new Updates(model, () => this.inputs(), (result) => this.show(result));
    this.outputs = model.needsOutputs ? new Outputs(model, () => this.pixels && this.updates.request()) : null;
    this.build(place);
  }

  build(place) {
    const { low, high } = this.model.about.schema;
    this.file = make("input", { type: "file", id: "picture", accept: "image/*" });
    this.file.addEventListener("change", () => this.file.files[0] && this.open(this.file.files[0]));
    const size = { width: this.width, height: this.height };
    const role = { role: "img", "aria-label": "the image as the model sees it" };
    this.canvas = make("canvas", { id: "preview", ...size, ...role });
    this.canvas.hidden = true;
    const range = [low, high].map((v) => minus(String(Number(v.toPrecision(3))))).join(" to ");
    const pixels = `${this.width} × ${this.height}${this.channels === 1 ? " grey" : ""} pixels`;
    const words = `The image is cropped and scaled to ${pixels}, with values from ${range} as in training.`;
    const note = make("p", { class: "quiet" }, words);
    const drop = make(
      "div",
      { id: "drop" },
      this.canvas,
      make("div", {}, make("label", { for: "picture" }, "Drop an image here or choose one"), this.file, note),
    );
    for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
      drop.addEventListener(kind, (event) => {
        event.preventDefault();
        drop.classList.toggle("over", kind === "dragenter" || kind === "dragover");
      });
    }
    drop.addEventListener("drop", (event) => event.dataTransfer.files[0] && this.open(event.dataTransfer.files[0]));
    this.note = make("p", { id: "note", class: "quiet" });
    this.legend = make("div", { id: "legend" });
    this.legend.hidden = true;
    this.maps = make("div", { id: "maps" });
    this.more = make("button", { type: "button", id: "more" });
    this.more.hidden = true;
    this.more.addEventListener("click", () => this.draw(Infinity));
    place.append(drop, ...(this.outputs ? [this.outputs.element] : []));
    place.append(this.note, this.legend, this.maps, this.more);
  }

  async open(file) {
    if (![1, 3, 4].includes(this.channels)) {
      return say(`The model takes images with ${this.channels} channels, which image files cannot have.`, "error");
    }
    let bitmap;
    try {
      bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
    } catch {
      return say(`${file.name} is not an image that this browser can read.`, "error");
    }
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    const { width, height } = this, zoom = Math.max(width / bitmap.width, height / bitmap.height);
    const [w, h] = [bitmap.width * zoom, bitmap.height * zoom];
    context.clearRect(0, 0, width, height);
    if (this.channels < 4) {  // Transparent pixels become white.
      context.fillStyle = "white";
      context.fillRect(0, 0, width, height);
    }
    context.imageSmoothingEnabled = zoom !== 1;
    context.imageSmoothingQuality = "high";
    context.drawImage(bitmap, (width - w) / 2, (height - h) / 2, w, h);
    this.canvas.hidden = false;
    this.pixels = context.getImageData(0, 0, width, height).data;
    this.all = false;
    if (this.outputs) this.outputs.anew = true;
    say("Computing …");
    await new Promise((done) => setTimeout(done, 20));  // The browser draws the message before the page is busy,
    say("");  // and removes it when the page is no longer busy.
    await this.updates.request();
  }

  grey(i) {
    const [r, g, b] = this.pixels.subarray(4 * i, 4 * i + 3);
    return 0.299 * r + 0.587 * g + 0.114 * b;
  }

  inputs() {
    const { low, high } = this.model.about.schema, area = this.width * this.height;
    const data = new Float32Array(this.channels * area);
    for (let c = 0; c < this.channels; c++) {
      for (let i = 0; i < area; i++) {
        const pixel = this.channels === 1 ? this.grey(i) : this.pixels[4 * i + c];
        data[c * area + i] = low + ((high - low) * pixel) / 255;
      }
    }
    const rows = { dims: [1, this.channels, this.height, this.width], data };
    return this.outputs ? { rows, outputs: this.outputs.tensor() } : { rows };
  }

  show(result) {
    if (this.outputs?.startsFrom(result)) return;
    this.result = result;
    this.draw(this.all ? Infinity : FIRST_CLASSES);
  }

  draw(most) {
    const { output_names: names, players } = this.model.about, { predictions, shap_values: values } = this.result;
    const count = names.length, value = (player, output) => values.data[player * count + output];
    const shared = (player, output) => value(player, output) * this.share[player];
    let largest = 1e-12, reach = 0;
    for (let i = 0; i < players.names.length; i++) {
      for (let k = 0; k < count; k++) {
        largest = Math.max(largest, Math.abs(shared(i, k)));
        reach = Math.max(reach, Math.abs(value(i, k)));
      }
    }
    const digits = digitsFor(Math.max(reach, ...Array.from(predictions.data, Math.abs)));
    const order = names.map((_, k) => k).sort((a, b) => predictions.data[b] - predictions.data[a]);
    const figure = (k) => this.figure(k, (player) => shared(player, k) / largest, digits);
    this.maps.replaceChildren(...order.slice(0, most).map(figure));
    this.all = most >= count;
    this.more.hidden = this.all;
    this.more.textContent = `Show all ${count} classes`;
    const words = ["lowers the prediction", "raises the prediction"].map((side) => make("span", {}, side));
    this.legend.replaceChildren(words[0], make("span", { class: "ramp" }), words[1]);
    this.legend.hidden = false;
    this.note.textContent = `Values are ${scaleOf(this.model.about)}. All maps share one colour scale.`;
  }

  /* Draws one class: its map on top of the image. strength(player) is from -1 to 1. */
  figure(output, strength, digits) {
    const { about } = this.model, { owner, names } = about.players, name = about.output_names[output];
    const count = about.output_names.length, { base_values: base, predictions, shap_values: values } = this.result;
    const canvas = make("canvas", { width: this.width, height: this.height, role: "img" });
    const context = canvas.getContext("2d"), image = context.createImageData(this.width, this.height);
    for (let i = 0; i < owner.length; i++) {
      const share = strength(owner[i]), colour = share < 0 ? COLOURS.negative : COLOURS.positive;
      const opacity = 0.92 * Math.abs(share) ** 0.8, pale = 190 + (this.grey(i) / 255) * 60;
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = pale + opacity * (colour[c] - pale);
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    const own = names.map((_, i) => values.data[i * count + output]);
    const sum = own.reduce((a, b) => a + b, 0), [low, high] = [Math.min(...own), Math.max(...own)];
    const extremes = [low, high].map((v) => `${plain(v, digits)} (${names[own.indexOf(v)]})`);
    canvas.setAttribute("aria-label", `values for ${name}, from ${extremes.join(" to ")}`);
    const added = `${sum < 0 ? "−" : "+"} ${plain(Math.abs(sum), digits)}`;
    const sums = `${plain(base.data[output], digits)} base ${added}`;
    const prediction = make("b", {}, plain(predictions.data[output], digits));
    const label = make("span", { class: "name" }, name), small = make("small", { class: "quiet" }, sums);
    const caption = make("figcaption", {}, label, prediction, small);
    return make("figure", { "data-output": name, "data-value": predictions.data[output] }, canvas, caption);
  }
}
