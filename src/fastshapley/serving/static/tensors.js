"use strict";

/* Tensors, which all operators work on. A tensor is {type, dims, data}. Integers are stored as doubles, which are
   exact up to 2^53. */

const STORES = { float: Float32Array, double: Float64Array, int: Float64Array, bool: Uint8Array };
const TYPES = { 1: "float", 2: "int", 3: "int", 6: "int", 7: "int", 9: "bool", 11: "double" };  // ONNX's codes of types

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

  /* Returns the distance between neighbouring entries along each axis. */
  function strides(dims) {
    const found = new Array(dims.length);
    for (let axis = dims.length - 1, stride = 1; axis >= 0; stride *= dims[axis--]) found[axis] = stride;
    return found;
  }

  /* Returns the positions that one list of offsets per axis leads to, in order. A position is -1 if one of its
     offsets is. Most operators that move entries only change these lists: they slice, reverse, repeat, pad or
     select along an axis. */
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

  /* Returns the lists of offsets of a whole tensor. Operators then replace some of them. */
  function whole(x) {
    const apart = strides(x.dims);
    return x.dims.map((dim, axis) => steps(dim, apart[axis]));
  }

  function take(x, lists, fill = 0) {
    const from = places(lists), result = tensor(x.type, lists.map((list) => list.length));
    for (let i = 0; i < from.length; i++) result.data[i] = from[i] < 0 ? fill : x.data[from[i]];
    return result;
  }

  /* Selects the entries at some indices along one axis. */
  function choose(x, axis, indices) {
    const lists = whole(x);
    lists[axis] = indices.map((index) => lists[axis][positive(index, x.dims[axis])]);
    return take(x, lists);
  }

  /* Returns where each group along some axes starts, and the offsets within a group. */
  function groups(x, axes) {
    const lists = whole(x);
    return [false, true].map((along) => places(lists.filter((_, axis) => axes.includes(axis) === along)));
  }

  /* Returns the shape to which all of these shapes broadcast. */
  function common(shapes) {
    const rank = Math.max(...shapes.map((dims) => dims.length));
    return steps(rank).map((axis) => {
      const dims = shapes.map((shape) => shape[shape.length - rank + axis] ?? 1);
      return dims.includes(0) ? 0 : Math.max(...dims);
    });
  }

  /* Broadcasts a tensor's data to a shape. */
  function spread(x, dims) {
    const entries = size(dims);
    if (x.data.length === entries) return x.data;
    if (x.data.length === 1) return new STORES[x.type](entries).fill(x.data[0]);
    const skip = dims.length - x.dims.length, apart = strides(x.dims);
    return take(x, dims.map((dim, i) => steps(dim, i < skip || x.dims[i - skip] === 1 ? 0 : apart[i - skip]))).data;
  }

  /* Applies a function of one, two or three numbers to all entries. */
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
