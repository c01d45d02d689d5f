/** What the pages of exports are made of: the export and its examples, words of state, curves, pictures. */

import { fetchFile, load, readSafetensors } from "./runtime.js";

export const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
// Steps from which the curve's mean is drawn, and how many on each side it takes.
const SMOOTH = 48;
const HALF = 8;

export const text = (value) => (!Number.isFinite(value) ? String(value) : value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5) ? value.toPrecision(4) : value.toExponential(2));
export const elementsOf = (shape) => shape.reduce((n, size) => n * size, 1);
export const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

/** Tell the state of the page in words. */
export function say(words, bad = false) {
  $("status").className = bad ? "bad" : "";
  $("status").textContent = words;
}

/** Return the mean of the steps around one. */
function mean(values, at) {
  const near = values.slice(Math.max(0, at - HALF), at + HALF + 1);
  return near.reduce((sum, v) => sum + v, 0) / near.length;
}

/** Draw values, one for each step, as a curve into an SVG, with a mark at the step `at`; return what is shown, in words. */
export function curve(svg, values, at = null) {
  // One unit of the drawing is one pixel, so that text has its size on a phone too.
  const width = Math.max(280, Math.round(svg.clientWidth || 800));
  const [height, left, right, top, bottom] = [Math.round(svg.clientHeight || 280), 52, 8, 8, 24];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [];
  const add = (tag, attributes, content) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (content !== undefined) node.textContent = content;
    parts.push(node);
  };
  const finite = values.filter(Number.isFinite);
  let low = Math.min(...finite, Infinity);
  let high = Math.max(...finite, -Infinity);
  if (!finite.length) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - Math.abs(low) * 0.1 - 1e-6, high + Math.abs(high) * 0.1 + 1e-6];
  const step = 10 ** Math.floor(Math.log10(high - low));
  const tick = (high - low) / step > 5 ? 2 * step : (high - low) / step > 2 ? step : step / 2;
  [low, high] = [Math.floor(low / tick) * tick, Math.ceil(high / tick) * tick];
  const last = Math.max(values.length - 1, 8);
  const x = (i) => left + ((width - left - right) * i) / last;
  const y = (v) => top + (height - top - bottom) * (1 - (v - low) / (high - low));
  if (!finite.length) add("text", { class: "empty", x: (left + width) / 2, y: height / 2, "text-anchor": "middle" }, "Each step adds a point here");
  for (let v = low; v <= high + tick / 2; v += tick) {
    if (!finite.length && v > low) break;
    add("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) });
    if (finite.length) add("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, String(Number(v.toPrecision(6))));
  }
  for (let i = 0; i <= 4 && finite.length; i++) {
    const s = Math.round((last * i) / 4);
    add("text", { x: x(s), y: height - 4, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, String(s + 1));
  }
  // No more points than the chart has pixels.
  const every = Math.max(1, Math.ceil(values.length / 800));
  const shown = values.map((v, i) => [i, v]).filter(([i, v]) => Number.isFinite(v) && (i % every === 0 || i === values.length - 1));
  const line = (points) => points.map(([i, v], n) => `${n ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  // Batches differ: what the values tend to is the mean of the last ones.
  const smooth = values.length >= SMOOTH;
  add("path", { class: smooth ? "curve faint" : "curve", d: line(shown) });
  if (smooth) add("path", { class: "curve", d: line(shown.map(([i]) => [i, mean(values, i)]).filter(([, v]) => Number.isFinite(v))) });
  if (at !== null && Number.isFinite(values[at])) {
    add("line", { class: "cursor", x1: x(at), x2: x(at), y1: top, y2: height - bottom });
    add("circle", { class: "dot", cx: x(at), cy: y(values[at]), r: 5 });
  }
  svg.replaceChildren(...parts);
  return smooth ? `at each step, and the mean of ${2 * HALF + 1} steps` : "at each step";
}

/** Open the export that this page is of, on the device that its address names, and say on what it runs. */
export async function opened(options = {}) {
  const cpu = $("cpu.wasm") ? [await inline("cpu.wasm"), await inline("cpu.bin")] : null;
  const source = $("program.json")
    ? { program: new TextDecoder().decode(await inline("program.json")), weights: await inline("weights.safetensors"), cpu, cpuScript: globalThis.webtorchCpu }
    : "./";
  const device = new URLSearchParams(location.search).get("device") ?? "auto";
  // Software adapters and some drivers take a minute for what others have in a second.
  const slow = setTimeout(() => say("The browser compiles the program's kernels …"), 3000);
  const model = await load(source, { device, script: globalThis.webtorchWorker ?? null, ...options }).finally(() => clearTimeout(slow));
  say([`Ready on ${model.deviceName}.`, model.reason].filter(Boolean).join(" "));
  return model;
}

/** Return the bytes of a file that is a block of this page, or null. */
async function inline(name) {
  const block = $(name);
  if (!block) return null;
  const packed = Uint8Array.from(atob(block.textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** Return the weights before any training, as `loadState` takes them. */
export async function initial() {
  return (await inline("initial.safetensors")) ?? fetchFile(new URL("./", location.href), "initial.safetensors");
}

/** Return the inputs to try of each function. */
export async function examples(model) {
  const out = {};
  let tensors = null;
  const typed = { float32: Float32Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, int8: Int8Array };
  for (const [name, { arguments: inputs, examples: count }] of Object.entries(model.functions)) {
    if (!inputs.length) {
      out[name] = [{}];
      continue;
    }
    out[name] = [];
    if (!count) continue;
    tensors ??= readSafetensors((await inline("examples.safetensors")) ?? (await fetchFile(new URL("./", location.href), "examples.safetensors")), "examples.safetensors");
    const read = ({ dtype, bytes, shape }) => {
      const array = new (typed[dtype] ?? Uint8Array)(bytes.slice().buffer);
      return { data: dtype === "float16" ? halves(new Uint16Array(array.buffer)) : array, shape };
    };
    for (let i = 0; i < count; i++) out[name].push(Object.fromEntries(inputs.map((a) => [a.name, read(tensors[`${name}/${i}.${a.name}`])])));
  }
  return out;
}

const halves = (bits) => Float32Array.from(bits, (h) => {
  const [sign, exponent, fraction] = [h & 0x8000 ? -1 : 1, (h >> 10) & 31, h & 1023];
  return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
});

/** Draw the image `index` of a batch (values from 0 to 1, or bytes) on a canvas. */
export function paint(canvas, { data, shape }, index, dtype) {
  const [channels, height, width] = shape.slice(-3);
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  const from = index * channels * height * width;
  const part = Array.from(data.slice(from, from + channels * height * width), Number);
  let [low, high] = dtype === "uint8" ? [0, 255] : [Math.min(...part, 0), Math.max(...part, 1)];
  for (let i = 0; i < height * width; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = (255 * (part[(c % channels) * height * width + i] - low)) / (high - low);
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Return scores as shares of one: their softmax, if they are no shares yet. */
export function shares(scores) {
  const sum = scores.reduce((a, b) => a + b, 0);
  if (Math.min(...scores) >= 0 && Math.abs(sum - 1) < 1e-3) return scores;
  const high = Math.max(...scores);
  const powers = scores.map((v) => Math.exp(v - high));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((v) => v / total);
}

/** Draw a token from scores at a temperature. */
export function drawn(scores, temperature = 0.8) {
  const parts = shares(Array.from(scores, (v) => v / temperature));
  let left = Math.random();
  return Math.max(0, parts.findIndex((p) => (left -= p) < 0));
}
