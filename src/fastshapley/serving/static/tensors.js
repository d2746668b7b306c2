"use strict";

/* What all operators work on. A tensor is {type, dims, data}; whole numbers are kept as doubles, which are exact up
   to 2^53. */

const STORES = { float: Float32Array, double: Float64Array, int: Float64Array, bool: Uint8Array };
const TYPES = { 1: "float", 2: "int", 3: "int", 6: "int", 7: "int", 9: "bool", 11: "double" };  // by ONNX's numbers

const tensors = (() => {
  const size = (dims) => dims.reduce((product, dim) => product * dim, 1);
  const tensor = (type, dims, data) => ({ type, dims, data: data ?? new STORES[type](size(dims)) });
  const numbers = (x) => Array.from(x.data);
  const positive = (axis, rank) => (axis < 0 ? axis + rank : axis);

  function steps(length, stride = 1, start = 0) {
    const found = new Array(length);
    for (let i = 0; i < length; i++) found[i] = start + i * stride;
    return found;
  }

  /* How far entries that follow each other along each axis lie apart. */
  function strides(dims) {
    const found = new Array(dims.length);
    for (let axis = dims.length - 1, stride = 1; axis >= 0; stride *= dims[axis--]) found[axis] = stride;
    return found;
  }

  /* The places that lists of offsets, one an axis, lead to, in order; -1 where one of them does. Nearly all that
     moves numbers about is this: an axis that is cut, turned, repeated, padded or chosen from is a list. */
  function places(lists) {
    let found = Int32Array.of(0);
    for (const list of lists) {
      const next = new Int32Array(found.length * list.length);
      for (let i = 0, k = 0; i < found.length; i++) {
        for (let j = 0; j < list.length; j++, k++) next[k] = found[i] < 0 || list[j] < 0 ? -1 : found[i] + list[j];
      }
      found = next;
    }
    return found;
  }

  /* The lists of a whole tensor, in which operators then replace some. */
  function whole(x) {
    const apart = strides(x.dims);
    return x.dims.map((dim, axis) => steps(dim, apart[axis]));
  }

  function take(x, lists, fill = 0) {
    const from = places(lists), result = tensor(x.type, lists.map((list) => list.length));
    for (let i = 0; i < from.length; i++) result.data[i] = from[i] < 0 ? fill : x.data[from[i]];
    return result;
  }

  /* Along one axis, the entries at some indices. */
  function choose(x, axis, indices) {
    const lists = whole(x);
    lists[axis] = indices.map((index) => lists[axis][positive(index, x.dims[axis])]);
    return take(x, lists);
  }

  /* Where each group starts that lies along some axes, and the offsets within one. */
  function groups(x, axes) {
    const lists = whole(x);
    return [false, true].map((along) => places(lists.filter((_, axis) => axes.includes(axis) === along)));
  }

  /* The shape that all of these can be spread to. */
  function common(shapes) {
    const rank = Math.max(...shapes.map((dims) => dims.length));
    return steps(rank).map((axis) => {
      const dims = shapes.map((shape) => shape[shape.length - rank + axis] ?? 1);
      return dims.includes(0) ? 0 : Math.max(...dims);
    });
  }

  /* A tensor's data, spread to such a shape. */
  function spread(x, dims) {
    const entries = size(dims);
    if (x.data.length === entries) return x.data;
    if (x.data.length === 1) return new STORES[x.type](entries).fill(x.data[0]);
    const skip = dims.length - x.dims.length, apart = strides(x.dims);
    return take(x, dims.map((dim, i) => steps(dim, i < skip || x.dims[i - skip] === 1 ? 0 : apart[i - skip]))).data;
  }

  /* A function of one, two or three numbers, of all entries. */
  function each(f, type, ...inputs) {
    const dims = inputs.length > 1 ? common(inputs.map((x) => x.dims)) : inputs[0].dims;
    const [a, b, c] = inputs.map((x) => spread(x, dims)), result = tensor(type, dims), out = result.data;
    if (c) for (let i = 0; i < out.length; i++) out[i] = f(a[i], b[i], c[i]);
    else if (b) for (let i = 0; i < out.length; i++) out[i] = f(a[i], b[i]);
    else for (let i = 0; i < out.length; i++) out[i] = f(a[i]);
    return result;
  }

  return {
    size, tensor, numbers, positive, steps, strides, places, whole, take, choose, groups, common, spread, each,
  };
})();
