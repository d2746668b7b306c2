"use strict";

/* The operators of ONNX graphs that exported explainers and torch networks use. An operator takes a node's
   attributes and inputs, and returns a tensor or a list of tensors. More are in layers.js. */

const operators = (() => {
  const { size, tensor, numbers, positive, steps, strides, places, whole, take, choose, groups } = tensors;
  const { common, spread, each } = tensors;

  // ---- operators on single entries

  const unary = (f) => (attributes, x) => each((v) => f(v, attributes), x.type, x);
  const binary = (f) => (_, a, b) => each(f, a.type, a, b);
  const test = (f) => (_, ...inputs) => each(f, "bool", ...inputs);
  const folded = (f) => (_, ...inputs) => inputs.reduce((a, b) => each(f, a.type, a, b));

  const sigmoid = (v) => 1 / (1 + Math.exp(-v));
  const softplus = (v) => Math.max(v, 0) + Math.log1p(Math.exp(-Math.abs(v)));

  /* A series with only positive terms, so no precision is lost. */
  function erf(v) {
    if (!(Math.abs(v) < 6)) return Math.sign(v);
    let term = v, sum = v;
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * v * v) / (2 * n + 1);
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-v * v) * sum;
  }

  function gelu(v, { approximate }) {
    if (approximate === "tanh") return 0.5 * v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3)));
    return 0.5 * v * (1 + erf(v / Math.SQRT2));
  }

  function toEven(v) {
    const rounded = Math.round(v);
    return rounded - v === 0.5 && rounded % 2 ? rounded - 1 : rounded;
  }

  function as(type, x) {
    if (type === x.type) return x;
    const data = type === "bool" ? x.data.map(Boolean) : type === "int" ? x.data.map(Math.trunc) : x.data;
    return tensor(type, x.dims, STORES[type].from(data));
  }

  // ---- shapes

  function reshape({ allowzero }, x, shape) {
    const dims = numbers(shape).map((dim, axis) => (dim === 0 && !allowzero ? x.dims[axis] : dim));
    const open = dims.indexOf(-1);
    if (open >= 0) dims[open] = x.data.length / size(dims.filter((_, axis) => axis !== open));
    return tensor(x.type, dims, x.data);
  }

  function squeeze(attributes, x, given) {
    const axes = (given ? numbers(given) : attributes.axes)?.map((axis) => positive(axis, x.dims.length));
    return tensor(x.type, x.dims.filter((dim, axis) => (axes ? !axes.includes(axis) : dim !== 1)), x.data);
  }

  function unsqueeze(attributes, x, given) {
    const axes = given ? numbers(given) : attributes.axes, rank = x.dims.length + axes.length, rest = [...x.dims];
    const added = axes.map((axis) => positive(axis, rank));
    return tensor(x.type, steps(rank).map((axis) => (added.includes(axis) ? 1 : rest.shift())), x.data);
  }

  function flatten({ axis = 1 }, x) {
    const rows = size(x.dims.slice(0, positive(axis, x.dims.length)));
    return tensor(x.type, [rows, x.data.length / rows], x.data);
  }

  function transpose({ perm }, x) {
    const lists = whole(x);
    return take(x, perm ? perm.map((axis) => lists[axis]) : lists.reverse());
  }

  function expand(_, x, shape) {
    const dims = common([x.dims, numbers(shape)]);
    return tensor(x.type, dims, spread(x, dims));
  }

  function concat({ axis }, ...inputs) {
    const at = positive(axis, inputs[0].dims.length), dims = [...inputs[0].dims];
    dims[at] = inputs.reduce((sum, x) => sum + x.dims[at], 0);
    const result = tensor(inputs[0].type, dims), outer = size(dims.slice(0, at));
    let place = 0;
    for (let i = 0; i < outer; i++) {
      for (const { data } of inputs) {
        const length = data.length / outer;
        result.data.set(data.subarray(i * length, (i + 1) * length), place);
        place += length;
      }
    }
    return result;
  }

  function split(attributes, x, given) {
    const axis = positive(attributes.axis ?? 0, x.dims.length), dim = x.dims[axis];
    const parts = attributes.num_outputs ?? attributes.outputs, part = Math.ceil(dim / parts);
    const even = steps(parts).map((i) => Math.min(part, dim - i * part));
    const lengths = given ? numbers(given) : attributes.split ?? even;
    let start = 0;
    return lengths.map((length) => choose(x, axis, steps(length, 1, (start += length) - length)));
  }

  function slice(_, x, starts, ends, axes, by) {
    const lists = whole(x);
    const chosen = axes ? numbers(axes) : steps(starts.data.length);
    chosen.forEach((given, i) => {
      const axis = positive(given, x.dims.length), dim = x.dims[axis], step = by?.data[i] ?? 1;
      const limit = (v, low, high) => Math.min(Math.max(positive(v, dim), low), high);
      const [low, high] = step > 0 ? [0, dim] : [-1, dim - 1];
      const start = limit(starts.data[i], Math.max(low, 0), high), end = limit(ends.data[i], low, high);
      const kept = steps(Math.max(0, Math.ceil((end - start) / step)), step, start);
      lists[axis] = kept.map((index) => lists[axis][index]);
    });
    return take(x, lists);
  }

  function gather({ axis = 0 }, x, indices) {
    const at = positive(axis, x.dims.length), found = choose(x, at, numbers(indices));
    return tensor(x.type, [...x.dims.slice(0, at), ...indices.dims, ...x.dims.slice(at + 1)], found.data);
  }

  /* Returns the positions to which the indices of GatherElements and ScatterElements point. */
  function elements(x, indices, given = 0) {
    const axis = positive(given, x.dims.length), apart = strides(x.dims);
    const base = places(indices.dims.map((dim, i) => steps(dim, i === axis ? 0 : apart[i])));
    return base.map((place, i) => place + positive(indices.data[i], x.dims[axis]) * apart[axis]);
  }

  function gatherElements({ axis }, x, indices) {
    return tensor(x.type, indices.dims, STORES[x.type].from(elements(x, indices, axis), (place) => x.data[place]));
  }

  /* Returns where the slices start to which the indices of GatherND and ScatterND point, and their length. */
  function slices(x, indices) {
    const depth = indices.dims.at(-1), apart = strides(x.dims), starts = [];
    for (let i = 0; i < indices.data.length; i += depth) {
      let start = 0;
      for (let axis = 0; axis < depth; axis++) {
        start += positive(indices.data[i + axis], x.dims[axis]) * apart[axis];
      }
      starts.push(start);
    }
    return [starts, size(x.dims.slice(depth))];
  }

  function gatherND({ batch_dims: batches = 0 }, x, indices) {
    if (batches) throw new Error("GatherND with batch_dims is not supported");
    const [starts, length] = slices(x, indices);
    const result = tensor(x.type, [...indices.dims.slice(0, -1), ...x.dims.slice(indices.dims.at(-1))]);
    starts.forEach((start, i) => result.data.set(x.data.subarray(start, start + length), i * length));
    return result;
  }

  const REDUCTIONS = {
    none: (_, b) => b, add: (a, b) => a + b, mul: (a, b) => a * b, max: Math.max, min: Math.min,
  };

  function scatter({ reduction = "none" }, x, updates, at) {
    const result = tensor(x.type, x.dims, x.data.slice()), f = REDUCTIONS[reduction];
    for (let i = 0; i < updates.data.length; i++) result.data[at(i)] = f(result.data[at(i)], updates.data[i]);
    return result;
  }

  function scatterND(attributes, x, indices, updates) {
    const [starts, length] = slices(x, indices);
    return scatter(attributes, x, updates, (i) => starts[Math.floor(i / length)] + (i % length));
  }

  function scatterElements(attributes, x, indices, updates) {
    const at = elements(x, indices, attributes.axis);
    return scatter(attributes, x, updates, (i) => at[i]);
  }

  function pad({ mode = "constant" }, x, pads, fill, axes) {
    const lists = whole(x), chosen = axes ? numbers(axes) : steps(x.dims.length);
    chosen.forEach((given, i) => {
      const axis = positive(given, x.dims.length), dim = x.dims[axis], list = lists[axis];
      const [before, after] = [pads.data[i], pads.data[i + chosen.length]];
      const turn = (v, period) => ((v % period) + period) % period;
      const outside = {
        constant: () => undefined,
        edge: (v) => Math.min(Math.max(v, 0), dim - 1),
        wrap: (v) => turn(v, dim),
        reflect: (v) => dim - 1 - Math.abs(dim - 1 - turn(v, 2 * dim - 2)),
      }[mode];
      lists[axis] = steps(dim + before + after, 1, -before).map((v) => list[v] ?? list[outside(v)] ?? -1);
    });
    return take(x, lists, fill?.data[0] ?? 0);
  }

  function range(_, start, limit, delta) {
    const length = Math.max(0, Math.ceil((limit.data[0] - start.data[0]) / delta.data[0]));
    return tensor(start.type, [length], STORES[start.type].from(steps(length, delta.data[0], start.data[0])));
  }

  function constant(attributes) {
    const { value, value_float: float, value_floats: floats, value_int: int, value_ints: ints } = attributes;
    if (value) return value;
    const [type, given] = (float ?? floats) === undefined ? ["int", int ?? ints] : ["float", float ?? floats];
    return tensor(type, Array.isArray(given) ? [given.length] : [], STORES[type].from([given].flat()));
  }

  function constantOfShape({ value }, shape) {
    const result = tensor(value?.type ?? "float", numbers(shape));
    result.data.fill(value?.data[0] ?? 0);
    return result;
  }

  // ---- reductions over axes

  const reduce = (f) => (attributes, x, given) => {
    const { keepdims = 1, noop_with_empty_axes: noop } = attributes;
    let axes = (given ? numbers(given) : attributes.axes ?? []).map((axis) => positive(axis, x.dims.length));
    if (!axes.length && noop) return x;
    if (!axes.length) axes = steps(x.dims.length);
    const [starts, within] = groups(x, axes);
    const dims = x.dims.map((dim, axis) => (axes.includes(axis) ? 1 : dim));
    const result = tensor(x.type, keepdims ? dims : dims.filter((_, axis) => !axes.includes(axis)));
    starts.forEach((start, i) => (result.data[i] = f(x.data, start, within)));
    return result;
  };

  const total = (f, first = 0) => (data, start, within) => {
    let sum = first;
    for (let i = 0; i < within.length; i++) sum = f(sum, data[start + within[i]]);
    return sum;
  };
  const sum = total((a, v) => a + v), highest = total(Math.max, -Infinity), lowest = total(Math.min, Infinity);
  const squares = total((a, v) => a + v * v), absolute = total((a, v) => a + Math.abs(v));
  const mean = (data, start, within) => sum(data, start, within) / within.length;

  function logSumExp(data, start, within) {
    const most = highest(data, start, within);
    return most + Math.log(total((a, v) => a + Math.exp(v - most))(data, start, within));
  }

  const argument = (better) => ({ axis = 0, keepdims, select_last_index: last }, x) => {
    const found = reduce((data, start, within) => {
      let best = 0;
      for (let i = 1; i < within.length; i++) {
        const [old, now] = [data[start + within[best]], data[start + within[i]]];
        if (better(now, old) || (last && now === old)) best = i;
      }
      return best;
    })({ axes: [axis], keepdims }, x);
    return tensor("int", found.dims, Float64Array.from(found.data));
  };

  const softmax = (finish) => ({ axis = -1 }, x) => {
    const [starts, within] = groups(x, [positive(axis, x.dims.length)]), result = tensor(x.type, x.dims);
    for (const start of starts) {
      const level = logSumExp(x.data, start, within);
      for (const place of within) result.data[start + place] = finish(x.data[start + place] - level);
    }
    return result;
  };

  function cumSum({ exclusive, reverse }, x, axis) {
    const [starts, within] = groups(x, [positive(axis.data[0], x.dims.length)]), result = tensor(x.type, x.dims);
    if (reverse) within.reverse();
    for (const start of starts) {
      let sum = 0;
      for (const place of within) {
        const before = sum;
        sum += x.data[start + place];
        result.data[start + place] = exclusive ? before : sum;
      }
    }
    return result;
  }

  return {
    Abs: unary(Math.abs), Neg: unary((v) => -v), Sign: unary(Math.sign), Exp: unary((v) => Math.exp(v)),
    Log: unary((v) => Math.log(v)), Sqrt: unary((v) => Math.sqrt(v)), Reciprocal: unary((v) => 1 / v),
    Floor: unary((v) => Math.floor(v)), Ceil: unary((v) => Math.ceil(v)), Round: unary(toEven),
    Sin: unary((v) => Math.sin(v)), Cos: unary((v) => Math.cos(v)), Erf: unary(erf),
    Relu: unary((v) => Math.max(v, 0)), LeakyRelu: unary((v, { alpha = 0.01 }) => (v < 0 ? alpha * v : v)),
    Elu: unary((v, { alpha = 1 }) => (v < 0 ? alpha * Math.expm1(v) : v)),
    Celu: unary((v, { alpha = 1 }) => (v < 0 ? alpha * Math.expm1(v / alpha) : v)),
    Selu: unary((v, { alpha = 1.67326319217681884765625, gamma = 1.05070102214813232421875 }) => {
      return gamma * (v < 0 ? alpha * Math.expm1(v) : v);
    }),
    Tanh: unary((v) => Math.tanh(v)), Sigmoid: unary(sigmoid), Softplus: unary(softplus),
    Softsign: unary((v) => v / (1 + Math.abs(v))), Mish: unary((v) => v * Math.tanh(softplus(v))),
    Gelu: unary(gelu),
    HardSigmoid: unary((v, { alpha = 0.2, beta = 0.5 }) => Math.max(0, Math.min(1, alpha * v + beta))),
    HardSwish: unary((v) => v * Math.max(0, Math.min(1, v / 6 + 0.5))),
    Clip: ({ min, max }, x, low, high) => {
      const [least, most] = [low?.data[0] ?? min ?? -Infinity, high?.data[0] ?? max ?? Infinity];
      return each((v) => Math.min(Math.max(v, least), most), x.type, x);
    },
    Identity: (_, x) => x, Dropout: (_, x) => x,
    Cast: ({ to }, x) => as(TYPES[to], x), CastLike: (_, x, like) => as(like.type, x),
    Add: binary((a, b) => a + b), Sub: binary((a, b) => a - b), Mul: binary((a, b) => a * b),
    Div: (_, a, b) => each(a.type === "int" ? (v, w) => Math.trunc(v / w) : (v, w) => v / w, a.type, a, b),
    Mod: ({ fmod }, a, b) => each(fmod ? (v, w) => v % w : (v, w) => v - w * Math.floor(v / w), a.type, a, b),
    Pow: binary((a, b) => a ** b), PRelu: binary((v, slope) => (v < 0 ? slope * v : v)),
    Max: folded(Math.max), Min: folded(Math.min), Sum: folded((a, b) => a + b),
    Equal: test((a, b) => a === b), Greater: test((a, b) => a > b), GreaterOrEqual: test((a, b) => a >= b),
    Less: test((a, b) => a < b), LessOrEqual: test((a, b) => a <= b), And: test((a, b) => a && b),
    Or: test((a, b) => a || b), Xor: test((a, b) => a !== b), Not: test((v) => !v), IsNaN: test(Number.isNaN),
    IsInf: ({ detect_negative: below = 1, detect_positive: above = 1 }, x) => {
      return each((v) => (above && v === Infinity) || (below && v === -Infinity), "bool", x);
    },
    Where: (_, condition, a, b) => each((chosen, v, w) => (chosen ? v : w), a.type, condition, a, b),

    Shape: ({ start, end }, x) => {
      const dims = x.dims.slice(start ?? 0, end ?? x.dims.length);
      return tensor("int", [dims.length], Float64Array.from(dims));
    },
    Size: (_, x) => tensor("int", [], Float64Array.of(x.data.length)),
    Reshape: reshape, Squeeze: squeeze, Unsqueeze: unsqueeze, Flatten: flatten, Transpose: transpose,
    Expand: expand, Concat: concat, Split: split, Slice: slice, Pad: pad, Gather: gather,
    GatherElements: gatherElements, GatherND: gatherND, ScatterND: scatterND, ScatterElements: scatterElements,
    Range: range, Constant: constant, ConstantOfShape: constantOfShape,
    Tile: (_, x, repeats) => take(x, whole(x).map((list, axis) => Array(repeats.data[axis]).fill(list).flat())),

    ReduceSum: reduce(sum), ReduceMean: reduce(mean), ReduceMax: reduce(highest), ReduceMin: reduce(lowest),
    ReduceProd: reduce(total((a, v) => a * v, 1)), ReduceSumSquare: reduce(squares), ReduceL1: reduce(absolute),
    ReduceL2: reduce((...group) => Math.sqrt(squares(...group))), ReduceLogSumExp: reduce(logSumExp),
    ArgMax: argument((a, b) => a > b), ArgMin: argument((a, b) => a < b), CumSum: cumSum,
    Softmax: softmax((v) => Math.exp(v)), LogSoftmax: softmax((v) => v),
  };
})();
