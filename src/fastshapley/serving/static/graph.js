"use strict";

/* Reads an ONNX graph from its file and runs it, one node after the other. It needs tensors.js, operators.js and
   layers.js. */

/* Reads a protobuf message. Returns a list of values per field number. A value is an integer or bytes. */
function message(bytes) {
  const fields = {};
  let place = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[place++];
      if (byte === undefined) throw new Error("the graph is cut short or damaged");
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return Number(BigInt.asIntN(64, value));
    }
  };
  const span = (length) => {
    if (length < 0 || place + length > bytes.length) throw new Error("the graph is cut short or damaged");
    return bytes.subarray(place, (place += length));
  };
  while (place < bytes.length) {
    const key = varint(), kind = key & 7;
    const value = kind === 0 ? varint() : span({ 1: 8, 5: 4 }[kind] ?? (kind === 2 ? varint() : -1));
    (fields[key >> 3] ??= []).push(value);
  }
  return fields;
}

const text = (bytes = new Uint8Array()) => new TextDecoder().decode(bytes);

function unpacked(bytes) {
  const found = [];
  for (let start = 0; start < bytes.length; ) {
    let end = start;
    while (bytes[end] > 127) end++;
    found.push(message(Uint8Array.of(8, ...bytes.subarray(start, ++end)))[1][0]);  // Read it as field 1 of a message.
    start = end;
  }
  return found;
}

/* Return the numbers of a repeated field, packed into one value or not. */
const integers = (values = []) => values.flatMap((value) => (typeof value === "number" ? value : unpacked(value)));
const floats = (values = []) => values.flatMap((value) => Array.from(new Float32Array(value.slice().buffer)));

const READERS = {
  1: (buffer) => new Float32Array(buffer),
  2: (buffer) => Float64Array.from(new Uint8Array(buffer)),
  3: (buffer) => Float64Array.from(new Int8Array(buffer)),
  6: (buffer) => Float64Array.from(new Int32Array(buffer)),
  7: (buffer) => Float64Array.from(new BigInt64Array(buffer), Number),
  9: (buffer) => new Uint8Array(buffer),
  11: (buffer) => new Float64Array(buffer),
};

function readTensor(bytes) {
  const { 1: dims, 2: [kind], 9: raw, 14: [elsewhere] = [], ...fields } = message(bytes);
  const { 4: float, 5: int32, 7: int64, 10: double } = fields;
  const type = TYPES[kind];
  if (!type || elsewhere) throw new Error(`tensors of type ${kind}, or in another file, are not supported`);
  let data;
  if (raw) data = READERS[kind](raw[0].slice().buffer);
  else if (double) data = double.flatMap((value) => Array.from(new Float64Array(value.slice().buffer)));
  else data = float ? floats(float) : integers(int32 ?? int64);
  return { type, dims: integers(dims), data: data instanceof STORES[type] ? data : STORES[type].from(data) };
}

function readNode(bytes) {
  const { 1: inputs = [], 2: outputs = [], 4: [operator], 5: attributes = [], 7: [domain] = [] } = message(bytes);
  const node = { operator: text(operator), inputs: inputs.map(text), outputs: outputs.map(text) };
  if (!["", "ai.onnx"].includes(text(domain))) node.operator = `${text(domain)}.${node.operator}`;
  node.attributes = { outputs: outputs.length };  // An old Split has only the number of its outputs.
  for (const attribute of attributes) {
    const { 1: [name], 20: [kind] = [], ...fields } = message(attribute);
    const { 2: float, 3: int, 4: string, 5: tensor, 7: many, 8: ints } = fields;
    node.attributes[text(name)] = {
      1: () => floats(float)[0], 2: () => int[0], 3: () => text(string?.[0]), 4: () => readTensor(tensor[0]),
      6: () => floats(many), 7: () => integers(ints),
    }[kind]?.();
  }
  return node;
}

function readValue(bytes) {
  const { 1: [name], 2: [type] } = message(bytes);
  const tensor = message(type)[1];  // A sequence or a map is not a tensor.
  return { name: text(name), type: TYPES[tensor && message(tensor[0])[1]?.[0]] };
}

/* Parses JSON in which Python may have written NaN or Infinity, which become null. */
function readJSON(json) {
  const parts = /"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b/g;  // Strings match too, and stay unchanged.
  return JSON.parse(json.replace(parts, (part) => (part[0] === '"' ? part : "null")));
}

/* An ONNX graph. `about` is the exporter's metadata. `unsupported` lists operators that are not supported here; with
   them `run` fails.

   run({rows: {dims, data}}) returns {shap_values: {dims, data}, ...}. */
class OnnxGraph {
  constructor(buffer) {
    const { 7: [graph] = [], 14: metadata = [] } = message(new Uint8Array(buffer));
    if (!graph) throw new Error("this is not an ONNX graph");
    const entry = metadata.map(message).find(({ 1: [key] }) => text(key) === "fastshapley");
    this.about = entry ? readJSON(text(entry[2][0])) : null;
    const { 1: nodes = [], 5: constants = [], 11: inputs = [], 12: outputs = [] } = message(graph);
    this.constants = new Map(constants.map((bytes) => [text(message(bytes)[8]?.[0]), readTensor(bytes)]));
    this.inputs = inputs.map(readValue).filter(({ name }) => !this.constants.has(name));
    this.outputs = outputs.map(readValue);
    this.nodes = nodes.map(readNode);
    const used = new Set(this.nodes.map(({ operator }) => operator));
    this.unsupported = [...used].filter((name) => !operators[name]).sort();
  }

  run(given) {
    const values = new Map(this.constants);
    for (const { name, type } of this.inputs) {
      if (!given[name]) throw new Error(`the graph needs ${name}`);
      values.set(name, { type, dims: given[name].dims, data: STORES[type].from(given[name].data) });
    }
    for (const { operator, attributes, inputs, outputs } of this.nodes) {
      if (!operators[operator]) throw new Error(`the operator ${operator} is not supported`);
      const found = operators[operator](attributes, ...inputs.map((name) => values.get(name)));
      [found].flat().forEach((value, i) => values.set(outputs[i], value));
    }
    return Object.fromEntries(this.outputs.map(({ name }) => [name, values.get(name)]));
  }
}
