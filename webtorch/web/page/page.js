/** The page of an exported program: runs it on the example batches, draws its first result, and lets its settings be changed. */

import { fetchFile, load, readSafetensors } from "./runtime.js";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const values = [];
let model = null;
let call = null;
let batches = [];
let resultName = null;
let running = false;
let started = 0;
let startedAt = 0;

const text = (value) => (!Number.isFinite(value) ? String(value) : value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5) ? value.toPrecision(4) : value.toExponential(2));
const bytesText = (n) => (n < 1e3 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);

function fail(error) {
  running = false;
  $("run").textContent = "Run";
  $("status").className = "bad";
  $("status").textContent = error.message;
}

function draw(at = null) {
  // One unit of the drawing is one pixel, so that text has its size on a phone too.
  const width = Math.max(280, Math.round($("chart").clientWidth || 800));
  const [height, left, right, top, bottom] = [280, 52, 8, 8, 24];
  $("chart").setAttribute("viewBox", `0 0 ${width} ${height}`);
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
  const last = Math.max(values.length - 1, 9);
  const x = (i) => left + ((width - left - right) * i) / last;
  const y = (v) => top + (height - top - bottom) * (1 - (v - low) / (high - low));
  for (let v = low; v <= high + tick / 2; v += tick) {
    add("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) });
    add("text", { x: left - 8, y: y(v) + 4, "text-anchor": "end" }, String(Number(v.toPrecision(6))));
  }
  for (let i = 0; i <= 4; i++) {
    const s = Math.round((last * i) / 4);
    add("text", { x: x(s), y: height - 4, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, String(s + 1));
  }
  // No more points than the chart has pixels.
  const every = Math.max(1, Math.ceil(values.length / 800));
  const shown = values.map((v, i) => [i, v]).filter(([i, v]) => Number.isFinite(v) && (i % every === 0 || i === values.length - 1));
  add("path", { class: "curve", d: shown.map(([i, v], n) => `${n ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("") });
  if (at !== null && Number.isFinite(values[at])) {
    add("line", { class: "cursor", x1: x(at), x2: x(at), y1: top, y2: height - bottom });
    add("circle", { class: "dot", cx: x(at), cy: y(values[at]), r: 5 });
  }
  $("pointed").textContent = at === null ? "" : `step ${at + 1}: ${text(values[at])}`;
  $("chart").replaceChildren(...parts);
}

/** Return results that are no single number in a few words: type, shape and the first elements of each. */
function summary(outputs) {
  const parts = Object.entries(outputs).map(([name, o]) => {
    if (!o?.data) return `${name}: ${o}`;
    const first = Array.from(o.data.slice(0, 6), (v) => (o.dtype === "bool" ? String(v === 1) : text(v))).join(", ");
    return `${name}: ${o.dtype}[${o.shape.join(", ")}] ${first}${o.data.length > 6 ? ", …" : ""}`;
  });
  return parts.join("; ");
}

function show(value, words) {
  values.push(value);
  $("last").textContent = words ? "below" : text(value);
  $("steps").textContent = values.length;
  const seconds = (performance.now() - startedAt) / 1e3;
  if (values.length - started > 1) $("speed").textContent = ((values.length - started) / seconds).toPrecision(3);
  const item = document.createElement("li");
  item.textContent = words ?? text(value);
  $("values").append(item);
  $("count").textContent = `${values.length} steps`;
}

async function step() {
  const outputs = await call(batches[values.length % batches.length]);
  if (resultName) show(outputs[resultName].data[0]);
  else show(NaN, summary(outputs));
}

async function run() {
  running = !running;
  $("run").textContent = running ? "Pause" : "Run";
  [started, startedAt] = [values.length, performance.now()];
  try {
    let drawn = 0;
    while (running) {
      await step();
      if (performance.now() - drawn > 50) {
        draw();
        drawn = performance.now();
        // A frame for the browser: the page stays alive however fast the steps are.
        await new Promise(requestAnimationFrame);
      }
    }
    draw();
  } catch (error) {
    fail(error);
  }
}

function addSettings() {
  // The constant that keeps a division finite is nothing to play with.
  const offered = Object.entries(model.settings).filter(([name]) => !/(^|\.)eps$/.test(name));
  const beside = offered.map(([name, value]) => {
    const label = document.createElement("label");
    const output = document.createElement("output");
    const input = document.createElement("input");
    output.textContent = String(Number(value.toPrecision(3)));
    input.type = "range";
    input.setAttribute("aria-label", name);
    // Three decades around a positive value; zero to one for what is zero.
    const log = value > 0;
    [input.min, input.max, input.step] = log ? [Math.log10(value) - 2, Math.log10(value) + 1, 0.01] : [0, 1, 0.01];
    input.value = log ? Math.log10(value) : value;
    input.addEventListener("input", () => {
      const chosen = log ? 10 ** Number(input.value) : Number(input.value);
      output.textContent = String(Number(chosen.toPrecision(3)));
      model.set(name, chosen);
    });
    label.append(name, output, input);
    return label;
  });
  $("settings").replaceChildren(...beside);
}

function describe() {
  const [name] = Object.keys(model.program.functions);
  const { steps } = model.program.functions[name];
  const rows = steps.map((s) => {
    const row = document.createElement("tr");
    const cells = s.copy ? ["copy", `${s.copy[2]} bytes`, ""] : [model.program.kernels[s.kernel].name, s.grid.join(" × "), s.line ?? ""];
    for (const cell of cells) row.append(Object.assign(document.createElement("td"), { textContent: cell }));
    return row;
  });
  $("program").replaceChildren(...rows);
  $("summary").textContent = `${steps.length} dispatches, one submission`;
  $("size").textContent = bytesText(model.program.states.reduce((sum, s) => sum + s.bytes, 0));
}

async function examples() {
  const count = model.program.examples ?? 0;
  const [name] = Object.keys(model.program.functions);
  const { arguments: inputs } = model.program.functions[name];
  if (!inputs.length) return [{}];
  if (!count) return [];
  const tensors = readSafetensors(await fetchFile(new URL("./", location.href), "examples.safetensors"), "examples.safetensors");
  const typed = { float32: Float32Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, int8: Int8Array };
  const read = ({ dtype, bytes }) => {
    const kind = typed[dtype] ?? Uint8Array;
    return new kind(bytes.slice().buffer);
  };
  return Array.from({ length: count }, (_, i) => Object.fromEntries(inputs.map((a) => [a.name, read(tensors[`${i}.${a.name}`])])));
}

async function start() {
  draw();
  model = await load("./");
  const [name] = Object.keys(model.program.functions);
  call = model[name];
  const first = model.program.functions[name].returns.find((r) => r.shape.every((n) => n === 1));
  resultName = first?.name ?? null;
  $("chart-name").textContent = $("last-name").textContent = resultName ?? "Result";
  if (!resultName) {
    $("chart").closest("figure").hidden = true;
    $("values").classList.add("wide");
    $("values").closest("details").open = true;
  }
  addSettings();
  describe();
  batches = await examples();
  $("status").textContent = `Ready on ${model.deviceName}.`;
  if (!batches.length) $("status").textContent += " This export has no example inputs; call m." + name + "(…) from your own page, or export with examples=[…].";
  for (const id of ["run", "once", "reset"]) $(id).disabled = !batches.length;
  for (const id of ["download", "upload"]) $(id).disabled = !model.program.states.length;
  $("run").addEventListener("click", run);
  $("once").addEventListener("click", () => step().then(() => draw(), fail));
  $("reset").addEventListener("click", () => location.reload());
  $("download").addEventListener("click", async () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await model.state()], { type: "application/octet-stream" }));
    link.download = "weights.safetensors";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  $("upload").addEventListener("change", async (event) => {
    try {
      model.loadState(await event.target.files[0].arrayBuffer());
      $("status").textContent = `Ready on ${model.deviceName}, with the uploaded weights.`;
    } catch (error) {
      fail(error);
    }
  });
  $("chart").addEventListener("pointermove", (event) => {
    if (!values.length) return;
    const box = $("chart").getBoundingClientRect();
    const share = (event.clientX - box.left - 52) / (box.width - 60);
    const at = Math.round(share * Math.max(values.length - 1, 9));
    draw(Math.max(0, Math.min(values.length - 1, at)));
  });
  $("chart").addEventListener("pointerleave", () => draw());
  addEventListener("resize", () => draw());
  // For the console, and for tests.
  globalThis.model = model;
}

start().catch(fail);
