"use strict";

/* The operators that are layers of networks: normalisations, products, convolutions, pooling and resizing. */

Object.assign(operators, (() => {
  const { size, tensor, numbers, positive, steps, choose, common, spread, each } = tensors;
  const { Transpose: transpose, ReduceMean: average, ReduceMax: highest } = operators;

  // ---- normalisations

  /* Standardises runs of entries, each by its own mean and variance. weight(start, i) and shift(start, i) are those of
     one entry. */
  function standardize(x, length, epsilon, weight, shift) {
    const result = tensor(x.type, x.dims), { data } = x;
    for (let start = 0; start < data.length; start += length) {
      let centre = 0, squares = 0;
      for (let i = start; i < start + length; i++) centre += data[i] / length;
      for (let i = start; i < start + length; i++) squares += (data[i] - centre) ** 2;
      const scale = 1 / Math.sqrt(squares / length + epsilon);
      for (let i = 0; i < length; i++) {
        result.data[start + i] = (data[start + i] - centre) * scale * weight(start, i) + shift(start, i);
      }
    }
    return result;
  }

  function layerNormalization({ axis = -1, epsilon = 1e-5 }, x, scale, bias) {
    const dims = x.dims.slice(positive(axis, x.dims.length)), weights = spread(scale, dims);
    const shifts = bias && spread(bias, dims);
    return standardize(x, size(dims), epsilon, (_, i) => weights[i], (_, i) => shifts?.[i] ?? 0);
  }

  function instanceNormalization({ epsilon = 1e-5 }, x, scale, bias) {
    const length = size(x.dims.slice(2)), channel = (start) => (start / length) % x.dims[1];
    return standardize(x, length, epsilon, (at) => scale.data[channel(at)], (at) => bias.data[channel(at)]);
  }

  function batchNormalization({ epsilon = 1e-5 }, x, ...parameters) {
    const [scale, bias, centre, variance] = parameters.map(({ data }) => data), result = tensor(x.type, x.dims);
    const length = size(x.dims.slice(2));
    for (let start = 0, i = 0; start < x.data.length; start += length, i++) {
      const c = i % x.dims[1], factor = scale[c] / Math.sqrt(variance[c] + epsilon);
      const rest = bias[c] - factor * centre[c];
      for (let j = start; j < start + length; j++) result.data[j] = x.data[j] * factor + rest;
    }
    return result;
  }

  // ---- products, which take nearly all of the time

  /* c (m, n) += a (m, k) b (k, n), with four rows of b at a time so that c is read and written less often. */
  function multiply(a, b, c, m, k, n) {
    for (let i = 0; i < m; i++) {
      const row = i * n;
      let p = 0;
      for (; p + 3 < k; p += 4) {
        const at = i * k + p, a0 = a[at], a1 = a[at + 1], a2 = a[at + 2], a3 = a[at + 3];
        const b0 = p * n, b1 = b0 + n, b2 = b1 + n, b3 = b2 + n;
        for (let j = 0; j < n; j++) c[row + j] += a0 * b[b0 + j] + a1 * b[b1 + j] + a2 * b[b2 + j] + a3 * b[b3 + j];
      }
      for (; p < k; p++) {
        const factor = a[i * k + p], from = p * n;
        for (let j = 0; j < n; j++) c[row + j] += factor * b[from + j];
      }
    }
  }

  /* The same with b (n, k), as in linear layers, with four independent sums at a time. */
  function multiplyRows(a, b, c, m, k, n) {
    for (let i = 0; i < m; i++) {
      const row = i * k;
      let j = 0;
      for (; j + 3 < n; j += 4) {
        const b0 = j * k, b1 = b0 + k, b2 = b1 + k, b3 = b2 + k, at = i * n + j;
        let c0 = 0, c1 = 0, c2 = 0, c3 = 0;
        for (let p = 0; p < k; p++) {
          const v = a[row + p];
          c0 += v * b[b0 + p];
          c1 += v * b[b1 + p];
          c2 += v * b[b2 + p];
          c3 += v * b[b3 + p];
        }
        c[at] += c0;
        c[at + 1] += c1;
        c[at + 2] += c2;
        c[at + 3] += c3;
      }
      for (; j < n; j++) {
        let sum = 0;
        for (let p = 0; p < k; p++) sum += a[row + p] * b[j * k + p];
        c[i * n + j] += sum;
      }
    }
  }

  function gemm({ alpha = 1, beta = 1, transA, transB }, a, b, c) {
    const left = transA ? transpose({}, a) : a, [m, k] = left.dims, n = b.dims[transB ? 0 : 1];
    const result = tensor(a.type, [m, n]);
    (transB ? multiplyRows : multiply)(left.data, b.data, result.data, m, k, n);
    if (alpha !== 1) result.data.forEach((v, i) => (result.data[i] = alpha * v));
    return c ? each((v, added) => v + beta * added, a.type, result, c) : result;
  }

  function matMul(_, a, b) {
    const left = a.dims.length > 1 ? a.dims : [1, ...a.dims], right = b.dims.length > 1 ? b.dims : [...b.dims, 1];
    const [m, k] = left.slice(-2), n = right.at(-1), outer = common([left.slice(0, -2), right.slice(0, -2)]);
    const x = spread(tensor(a.type, left, a.data), [...outer, m, k]);
    const y = spread(tensor(b.type, right, b.data), [...outer, k, n]);
    const result = tensor(a.type, [...outer, m, n]);
    for (let i = 0; i < size(outer); i++) {
      const part = (data, length) => data.subarray(i * length, (i + 1) * length);
      multiply(part(x, m * k), part(y, k * n), part(result.data, m * n), m, k, n);
    }
    const ends = [...(a.dims.length > 1 ? [m] : []), ...(b.dims.length > 1 ? [n] : [])];
    return tensor(a.type, [...outer, ...ends], result.data);
  }

  // ---- sliding windows

  /* Returns which input pixel each place of the kernel sees, for each output pixel: shape (kernel, output), -1 in
     the padding, -2 outside it. Convolutions, transposed convolutions and pooling all use it. */
  function windows(attributes, [height, width], [kh, kw]) {
    const { strides = [1, 1], dilations = [1, 1], ceil_mode: ceil, auto_pad: auto = "NOTSET" } = attributes;
    let { pads = [0, 0, 0, 0] } = attributes;
    const reach = [(kh - 1) * dilations[0] + 1, (kw - 1) * dilations[1] + 1];
    if (auto.startsWith("SAME")) {
      const missing = [height, width].map((dim, i) => {
        return Math.max(0, (Math.ceil(dim / strides[i]) - 1) * strides[i] + reach[i] - dim);
      });
      const less = missing.map((all) => Math.floor(all / 2)), more = missing.map((all, i) => all - less[i]);
      pads = auto === "SAME_LOWER" ? [...more, ...less] : [...less, ...more];
    }
    const dims = [height, width].map((dim, i) => {
      const last = (ceil ? Math.ceil : Math.floor)((dim + pads[i] + pads[i + 2] - reach[i]) / strides[i]);
      return last * strides[i] >= dim + pads[i] ? last : last + 1;  // A window may not start in the padding.
    });
    const seen = (place, dim, before, after) => {
      if (place >= 0 && place < dim) return place;
      return place < -before || place >= dim + after ? -2 : -1;
    };
    const map = new Int32Array(kh * kw * dims[0] * dims[1]);
    let i = 0;
    for (let ky = 0; ky < kh; ky++) {
      for (let kx = 0; kx < kw; kx++) {
        const starts = steps(dims[1], strides[1], kx * dilations[1] - pads[1]);
        const columns = starts.map((x) => seen(x, width, pads[1], pads[3]));
        for (let row = 0; row < dims[0]; row++) {
          const y = seen(row * strides[0] + ky * dilations[0] - pads[0], height, pads[0], pads[2]);
          for (const x of columns) map[i++] = x >= 0 && y >= 0 ? y * width + x : Math.min(x, y, -1);
        }
      }
    }
    return { map, dims, kernel: kh * kw };
  }

  /* Treats maps with one axis as maps of height one. */
  function flat(attributes, x, w) {
    if (x.dims.length === 4) return [attributes, x, w, (y) => y];
    if (x.dims.length !== 3) throw new Error("windows over more than two axes are not supported");
    const { strides: [stride] = [1], dilations: [dilation] = [1], pads: [before, after] = [0, 0] } = attributes;
    const more = { strides: [1, stride], dilations: [1, dilation], pads: [0, before, 0, after] };
    if (attributes.kernel_shape) more.kernel_shape = [1, attributes.kernel_shape[0]];
    if (attributes.output_padding) more.output_padding = [0, attributes.output_padding[0]];
    const raised = ({ type, dims: [a, b, c], data }) => tensor(type, [a, b, 1, c], data);
    const lowered = ({ type, dims: [a, b, , c], data }) => tensor(type, [a, b, c], data);
    return [{ ...attributes, ...more }, raised(x), w && raised(w), lowered];
  }

  function conv(given, maps, filters, bias) {
    const [attributes, x, w, back] = flat(given, maps, filters), { group = 1 } = attributes;
    const [n, channels, height, width] = x.dims, [outputs, depth, kh, kw] = w.dims;
    const { map, dims, kernel } = windows(attributes, [height, width], [kh, kw]);
    const plane = height * width, area = dims[0] * dims[1], share = outputs / group, rows = depth * kernel;
    const result = tensor(x.type, [n, outputs, ...dims]), direct = kernel === 1 && area === plane;
    const columns = direct ? null : new STORES[x.type](rows * area);
    for (let i = 0; i < n; i++) {
      for (let g = 0; g < group; g++) {
        const from = (i * channels + g * depth) * plane, source = x.data.subarray(from, from + depth * plane);
        if (columns) {
          for (let c = 0, k = 0; c < depth; c++) {
            for (let j = 0; j < map.length; j++, k++) columns[k] = map[j] < 0 ? 0 : source[c * plane + map[j]];
          }
        }
        const place = (i * outputs + g * share) * area, target = result.data.subarray(place, place + share * area);
        if (bias) for (let o = 0; o < share; o++) target.fill(bias.data[g * share + o], o * area, (o + 1) * area);
        const weights = w.data.subarray(g * share * rows, (g + 1) * share * rows);
        multiply(weights, columns ?? source, target, share, rows, area);
      }
    }
    return back(result);
  }

  function convTranspose(given, maps, filters, bias) {
    const [attributes, x, w, back] = flat(given, maps, filters), { group = 1, strides = [1, 1] } = attributes;
    const { dilations = [1, 1], pads = [0, 0, 0, 0], output_padding: extra = [0, 0] } = attributes;
    if (attributes.output_shape || (attributes.auto_pad ?? "NOTSET") !== "NOTSET") {
      throw new Error("ConvTranspose with output_shape or auto_pad is not supported");
    }
    const [n, channels, height, width] = x.dims, [, share, kh, kw] = w.dims, depth = channels / group;
    const dims = [height, width].map((dim, i) => {
      return (dim - 1) * strides[i] + ([kh, kw][i] - 1) * dilations[i] + 1 - pads[i] - pads[i + 2] + extra[i];
    });
    const { map } = windows({ strides, dilations, pads }, dims, [kh, kw]);  // windows of the forward convolution
    const plane = height * width, area = dims[0] * dims[1], rows = share * kh * kw;
    const result = tensor(x.type, [n, share * group, ...dims]);
    for (let i = 0; i < n; i++) {
      for (let g = 0; g < group; g++) {
        const own = w.data.subarray(g * depth * rows, (g + 1) * depth * rows);
        const weights = transpose({}, tensor(x.type, [depth, rows], own));
        const from = (i * channels + g * depth) * plane, source = x.data.subarray(from, from + depth * plane);
        const columns = new STORES[x.type](rows * plane);
        multiply(weights.data, source, columns, rows, depth, plane);
        for (let o = 0, k = 0; o < share; o++) {
          const place = (i * group * share + g * share + o) * area;
          if (bias) result.data.fill(bias.data[g * share + o], place, place + area);
          for (let j = 0; j < map.length; j++, k++) if (map[j] >= 0) result.data[place + map[j]] += columns[k];
        }
      }
    }
    return back(result);
  }

  const pool = (average) => (given, maps) => {
    const [attributes, x, , back] = flat(given, maps), { count_include_pad: padded } = attributes;
    const [n, channels, height, width] = x.dims, plane = height * width;
    const { map, dims, kernel } = windows(attributes, [height, width], attributes.kernel_shape);
    const result = tensor(x.type, [n, channels, ...dims]), area = dims[0] * dims[1];
    for (let c = 0; c < n * channels; c++) {
      for (let p = 0; p < area; p++) {
        let sum = 0, most = -Infinity, count = 0;
        for (let k = 0, j = p; k < kernel; k++, j += area) {
          const place = map[j];
          if (place >= 0) {
            const v = x.data[c * plane + place];
            sum += v;
            if (v > most) most = v;
          }
          if (place >= (padded ? -1 : 0)) count++;
        }
        result.data[c * area + p] = average ? sum / count : most;
      }
    }
    return back(result);
  };

  const globalPool = (reduce) => (_, x) => reduce({ axes: steps(x.dims.length - 2, 1, 2) }, x);

  /* Resizes one axis after the other. Each new entry is a weighted sum of some old entries. */
  function resize(attributes, x, region, scales, sizes) {
    const { mode = "nearest", coordinate_transformation_mode: where = "half_pixel", antialias } = attributes;
    const { nearest_mode: nearest = "round_prefer_floor", cubic_coeff_a: bend = -0.75 } = attributes;
    if (antialias) throw new Error("Resize with antialias is not supported");
    const axes = attributes.axes ?? steps(x.dims.length);
    return axes.reduce((now, axis, i) => {
      const dim = x.dims[axis], length = sizes?.data.length ? sizes.data[i] : Math.floor(dim * scales.data[i]);
      const scale = sizes?.data.length ? length / dim : scales.data[i];
      if (length === dim && scale === 1) return now;
      const old = {
        half_pixel: (v) => (v + 0.5) / scale - 0.5,
        pytorch_half_pixel: (v) => (length > 1 ? (v + 0.5) / scale - 0.5 : 0),
        align_corners: (v) => (length > 1 ? (v * (dim - 1)) / (length - 1) : 0),
        asymmetric: (v) => v / scale,
      }[where];
      if (!old) throw new Error(`Resize with ${where} is not supported`);
      const round = {
        floor: Math.floor,
        ceil: Math.ceil,
        round_prefer_floor: (v) => Math.ceil(v - 0.5),
        round_prefer_ceil: (v) => Math.floor(v + 0.5),
      }[nearest];
      const near = (t) => ((bend + 2) * t - (bend + 3)) * t * t + 1;
      const far = (t) => bend * (((t - 5) * t + 8) * t - 4);
      const taps = {
        nearest: (v) => [[round(v), 1]],
        linear: (v, low = Math.floor(v)) => [[low, 1 - v + low], [low + 1, v - low]],
        cubic: (v, low = Math.floor(v), t = v - low) => [
          [low - 1, far(t + 1)], [low, near(t)], [low + 1, near(1 - t)], [low + 2, far(2 - t)],
        ],
      }[mode];
      const used = steps(length).map((v) => taps(old(v)));
      const parts = used[0].map((_, tap) => {
        const chosen = choose(now, axis, used.map((list) => Math.min(Math.max(list[tap][0], 0), dim - 1)));
        const dims = [length, ...now.dims.slice(axis + 1).fill(1)];
        const weights = tensor(x.type, dims, Float64Array.from(used, (list) => list[tap][1]));
        return each((v, weight) => v * weight, x.type, chosen, weights);
      });
      return parts.reduce((a, b) => each((v, w) => v + w, x.type, a, b));
    }, x);
  }

  return {
    LayerNormalization: layerNormalization, InstanceNormalization: instanceNormalization,
    BatchNormalization: batchNormalization,
    Gemm: gemm, MatMul: matMul, Conv: conv, ConvTranspose: convTranspose,
    MaxPool: pool(false), AveragePool: pool(true),
    GlobalAveragePool: globalPool(average), GlobalMaxPool: globalPool(highest), Resize: resize,
  };
})());
