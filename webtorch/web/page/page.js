/** The page of an export: trains, draws the loss, takes inputs by hand and shows what the program makes of them. */

import { $, curve, drawn, elementsOf, examples, initial, make, opened, paint, say, shares, text } from "./widgets.js";

// Milliseconds between two looks at the samples while training, and characters that are written at once.
const LOOK = 1200;
const PROMPT = 160;
// Steps of which a number beside the curve is the mean.
const MEAN = 16;
const values = [];
let model = null;
// The function that trains (or is measured), the one that answers, and the one that only tells a number.
let training = null;
let answering = null;
let judging = null;
let batches = {};
let resultName = null;
let running = false;
// Which run it is: a loop ends when another one begins.
let turn = 0;
// Whether the weights began at random numbers here.
let fresh = false;
// Of each other number that a step gives: its latest values.
const others = new Map();
let started = 0;
let startedAt = 0;
let looked = 0;
let labels = null;
let vocabulary = null;
let writing = false;
// Of each input of the answering function: how to read it.
const readers = new Map();

const bytesText = (n) => (n < 1e3 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);

function fail(error) {
  running = false;
  $("run").textContent = doing();
  say(error.message, true);
}

/** Return what the button does when nothing runs. */
const doing = () => (!model?.functions[training]?.writes ? "Run" : model.program.initial && !fresh ? "Continue" : "Train");

function draw(at = null) {
  $("unit").textContent = curve($("chart"), values, at);
  $("pointed").textContent = at === null ? "" : `step ${at + 1}: ${text(values[at])}`;
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
  if (values.length - started > 1) $("speed").textContent = rate((perStep() * (values.length - started)) / seconds);
  $("values").append(make("li", { textContent: words ?? text(value) }));
  $("count").textContent = stepsSoFar();
}

const stepsSoFar = () => (values.length > 1 ? `${values.length} steps` : values.length ? "1 step" : "no step yet");

const rate = (v) => (v >= 100 ? Math.round(v).toLocaleString("en") : v.toPrecision(3));

/** Return the examples of one training step: the common first dimension of its inputs, else 1. */
function perStep() {
  const sizes = new Set(model.functions[training].arguments.map((a) => a.shape[0] ?? 0));
  return sizes.size === 1 && [...sizes][0] > 1 ? [...sizes][0] : 1;
}

async function step() {
  const given = batches[training];
  const outputs = await model[training](given[values.length % given.length]);
  if (resultName) show(outputs[resultName].data[0]);
  else show(NaN, summary(outputs));
  for (const [name, latest] of others) {
    latest.push(outputs[name].data[0]);
    if (latest.length > MEAN) latest.shift();
    const mean = latest.reduce((sum, v) => sum + v, 0) / latest.length;
    if (name === beside()) $("size").textContent = /^acc/i.test(name) ? `${(100 * mean).toFixed(1)} %` : text(mean);
  }
}

/** Return the second number of a training step, which has the fourth figure where no function of its own judges. */
const beside = () => (judging ? null : ([...others.keys()][0] ?? null));

async function run() {
  running = !running;
  const mine = ++turn;
  $("run").textContent = running ? "Pause" : doing();
  [started, startedAt] = [values.length, performance.now()];
  try {
    let drawn = 0;
    while (running && mine === turn) {
      await step();
      if (performance.now() - drawn > 50) {
        draw();
        drawn = performance.now();
        if (performance.now() - looked > LOOK) await look();
        // A frame for the browser: the page stays alive however fast the steps are.
        await new Promise(requestAnimationFrame);
      }
    }
    if (mine !== turn) return;
    draw();
    await look();
  } catch (error) {
    fail(error);
  }
}

/** Take one step; what runs is paused first. */
async function once() {
  if (running) await run();
  try {
    await step();
    draw();
    await look();
  } catch (error) {
    fail(error);
  }
}

/** Train from the weights before any training. */
async function startFromRandom() {
  running = false;
  turn++;
  try {
    await model.loadState(await initial());
    fresh = true;
    values.length = 0;
    for (const latest of others.values()) latest.length = 0;
    $("values").replaceChildren();
    $("count").textContent = stepsSoFar();
    $("steps").textContent = "0";
    await look();
    await run();
  } catch (error) {
    fail(error);
  }
}

function addSettings() {
  // The constant that keeps a division finite is nothing to play with.
  const all = Object.entries(model.settings).filter(([name]) => !/(^|\.)eps$/.test(name));
  const short = (name) => name.replace(/^groups\.\d+\./, "");
  // An option that all groups have with one value is one slider: set("lr") changes it in each.
  const alone = (name, value) => all.every(([other, v]) => short(other) !== short(name) || v === value);
  const offered = new Map(all.map(([name, value]) => [alone(name, value) ? short(name) : name, value]));
  const beside = [...offered].map(([name, value]) => {
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
    label.append(name.replace(/^groups\.(\d+)\.(.+)/, (_, group, option) => `${option} of group ${group}`), output, input);
    return label;
  });
  $("settings").replaceChildren(...beside);
}

function describe() {
  const shown = (s) => (s.copy ? ["copy", `${s.copy[2]} bytes`, "", ""] : [model.program.kernels[s.kernel].name, s.grid.join(" × "), s.line ?? "", ""]);
  const onCpu = ({ calls, names, lines }) => names.map((name, i) => [name, calls[4 * i] < 0 ? `${calls[4 * i + 3]} bytes` : String(calls[4 * i + 1]), lines[i], ""]);
  const parts = ({ steps, cpu }) => (model.device === "cpu" ? onCpu(cpu) : steps.map(shown));
  const rows = Object.entries(model.functions).flatMap(([name, description]) =>
    parts(description).map((cells, i) => {
      const row = make("tr", {}, ...cells.map((cell) => make("td", { textContent: cell })));
      row.dataset.step = `${name}.${i}`;
      return row;
    }),
  );
  // Where no step has a line of a program, there is no column of them.
  const lines = rows.some((row) => row.cells[2].textContent);
  for (const row of [...rows, $("program").parentElement.tHead.rows[0]]) row.cells[2].hidden = !lines;
  $("program").replaceChildren(...rows);
  $("summary").textContent = Object.entries(model.functions).map(([name, f]) => `${name}: ${parts(f).length} ${model.device === "cpu" ? "calls" : "dispatches"}`).join(", ");
  const size = bytesText(model.program.states.reduce((sum, s) => sum + s.bytes, 0));
  $("size").textContent = size;
}

async function measure() {
  const name = training ?? answering;
  try {
    const { rows } = await model.profile(name, batches[name]?.[0] ?? (await given()));
    rows.forEach((row, i) => {
      const cell = document.querySelector(`[data-step="${CSS.escape(`${name}.${i}`)}"] td:last-child`);
      cell.textContent = rate(row.ms * 1e3);
    });
  } catch (error) {
    fail(error);
  }
}

// --- inputs by hand ---------------------------------------------------------------------------------------------------

const isText = (argument) => vocabulary !== null && argument.kind === "integers" && argument.shape.length >= 1;

/** Return how far a point is from a line between two others. */
function distance([x, y], [fromX, fromY], [toX, toY]) {
  const [dx, dy] = [toX - fromX, toY - fromY];
  const along = Math.max(0, Math.min(1, ((x - fromX) * dx + (y - fromY) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - fromX - along * dx, y - fromY - along * dy);
}

/** Return the mean of the boxes that bright points of examples fill: left, top, right, bottom. */
function inkBox({ data, shape }, top) {
  const [height, width] = shape.slice(-2);
  const count = elementsOf(shape.slice(0, -2));
  const sum = [0, 0, 0, 0];
  for (let n = 0; n < count; n++) {
    const box = [width, height, 0, 0];
    for (let at = 0; at < height * width; at++) {
      if (Number(data[n * height * width + at]) < 0.4 * top) continue;
      const [x, y] = [at % width, Math.floor(at / width)];
      [box[0], box[1], box[2], box[3]] = [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)];
    }
    box.forEach((v, i) => (sum[i] += v / count));
  }
  return sum;
}

/** Return what moves points into a box: as high as it, or as wide where they are wider, in its middle. */
function fitted(points, [left, top, right, bottom]) {
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = Math.min((bottom - top) / Math.max(y1 - y0, 1e-3), (right - left) / Math.max(x1 - x0, 1e-3), 4);
  return ([x, y]) => [(left + right) / 2 + scale * (x - (x0 + x1) / 2), (top + bottom) / 2 + scale * (y - (y0 + y1) / 2)];
}

/** Return a canvas to draw on, with buttons; its reader gives a whole batch, with the drawing in the first place. */
function imageInput(argument, example) {
  const { shape, dtype } = argument;
  const [channels, height, width] = shape.slice(-3);
  const size = channels * height * width;
  const batch = Float32Array.from({ length: elementsOf(shape) }, () => 0);
  const canvas = make("canvas", { className: "draw", title: "Draw here" });
  canvas.setAttribute("aria-label", `${argument.name}: draw here`);
  const top = dtype === "uint8" ? 255 : 1;
  const hint = make("span", { textContent: "Draw here" });
  const redraw = () => {
    paint(canvas, { data: batch, shape }, 0, dtype);
    hint.hidden = batch.subarray(0, size).some((v) => v !== 0);
  };
  let shownExample = 0;
  // The picture that is drawn upon.
  const under = new Float32Array(size);
  const put = (values) => {
    strokes.length = 0;
    under.set(values);
    batch.set(values, 0);
    redraw();
  };
  // A soft brush, one sixteenth of the picture wide at least, along what was drawn.
  const radius = Math.max(0.75, width / 16);
  const strokes = [];
  const box = example && channels === 1 ? inkBox(example, top) : null;
  const ink = (map = (p) => p) => {
    const segments = strokes.flatMap((points) => points.map((p, n) => [map(points[Math.max(0, n - 1)]), map(p)]));
    for (let i = 0; i < height; i++) {
      for (let j = 0; j < width; j++) {
        const far = Math.min(...segments.map(([from, to]) => distance([j, i], from, to)));
        for (let c = 0; c < channels; c++) {
          const at = (c * height + i) * width + j;
          batch[at] = Math.max(under[at], top * Math.max(0, Math.min(1, 1.35 - far / radius)));
        }
      }
    }
    redraw();
    answerSoon();
  };
  const pointed = (event) => {
    const place = canvas.getBoundingClientRect();
    strokes.at(-1)?.push([((event.clientX - place.left) / place.width) * width - 0.5, ((event.clientY - place.top) / place.height) * height - 0.5]);
    ink();
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    strokes.push([]);
    pointed(event);
  });
  canvas.addEventListener("pointermove", (event) => event.buttons && pointed(event));
  // What was drawn is made as large as the examples are, and put where theirs is: a network has seen no other ones.
  canvas.addEventListener("pointerup", () => box && strokes.length && !under.some((v) => v) && ink(fitted(strokes.flat(), box)));
  const clear = make("button", { textContent: "Clear" });
  clear.addEventListener("click", () => {
    put(new Float32Array(size));
    answerSoon();
  });
  const buttons = make("div", { className: "buttons" }, clear);
  if (example) {
    const count = elementsOf(example.shape.slice(0, -3));
    const next = make("button", { textContent: "An example" });
    next.addEventListener("click", () => {
      put(Array.from(example.data.slice(size * shownExample, size * (shownExample + 1)), Number));
      shownExample = (shownExample + 1) % count;
      answerSoon();
    });
    buttons.append(next);
  }
  const file = make("input", { type: "file", accept: "image/*" });
  file.addEventListener("change", async () => {
    try {
      const picture = await createImageBitmap(file.files[0]);
      const small = make("canvas", { width, height });
      const context = small.getContext("2d");
      context.drawImage(picture, 0, 0, width, height);
      const { data } = context.getImageData(0, 0, width, height);
      const grey = (i) => 0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2];
      put(Float32Array.from({ length: size }, (_, i) => ((channels === 3 ? data[4 * (i % (width * height)) + Math.floor(i / (width * height))] : grey(i)) / 255) * top));
      answerSoon();
    } catch (error) {
      fail(new Error(`This picture could not be read: ${error.message}`));
    }
  });
  buttons.append(make("label", { className: "button", textContent: "A picture" }, file));
  // A colour picture is there to be changed, not to be drawn.
  if (example && channels === 3) put(Array.from(example.data.slice(0, size), Number));
  else redraw();
  readers.set(argument.name, () => ({ data: dtype === "uint8" ? Array.from(batch, Math.round) : batch, shape }));
  return make("div", { className: "drawing" }, make("div", { className: "pad" }, canvas, hint), buttons);
}

function textInput(argument, example) {
  const length = argument.shape.at(-1);
  const initial = example ? Array.from(example.data.slice(0, Math.min(24, length)), (i) => vocabulary[Number(i)] ?? "").join("") : "";
  const area = make("textarea", { value: initial, spellcheck: false });
  area.setAttribute("aria-label", argument.name);
  readers.set(argument.name, () => {
    const ids = [...area.value].map((c) => vocabulary.indexOf(c)).filter((i) => i >= 0).slice(-length);
    const data = new Int32Array(elementsOf(argument.shape));
    data.set(ids);
    return { data, shape: argument.shape };
  });
  return area;
}

function numbersInput(argument, example) {
  const count = elementsOf(argument.shape);
  const whole = argument.kind === "integers";
  const first = (i) => (example ? Number(example.data[i]) : 0);
  const shown = (v) => String(Number(v.toPrecision(6)));
  if (count <= 64) {
    const fields = Array.from({ length: count }, (_, i) => {
      const field = make("input", { type: "number", step: whole ? "1" : "any", value: shown(first(i)) });
      field.setAttribute("aria-label", `${argument.name} ${i + 1}`);
      field.addEventListener("input", answerSoon);
      return field;
    });
    readers.set(argument.name, () => ({ data: fields.map((f) => Number(f.value)), shape: argument.shape }));
    return make("div", { className: "numbers" }, ...fields);
  }
  const area = make("textarea", { value: Array.from({ length: count }, (_, i) => shown(first(i))).join(", "), spellcheck: false });
  area.setAttribute("aria-label", argument.name);
  readers.set(argument.name, () => ({ data: area.value.split(/[\s,;]+/).filter(Boolean).map(Number), shape: null }));
  return area;
}

function addInputs() {
  const description = model.functions[answering];
  const example = batches[answering][0] ?? {};
  const parts = description.arguments.map((argument) => {
    const beside = example[argument.name];
    const editor = argument.kind === "image" ? imageInput(argument, beside) : isText(argument) ? textInput(argument, beside) : numbersInput(argument, beside);
    const [height, width] = argument.shape.slice(-2);
    const form = argument.kind === "image" ? `a picture of ${width} × ${height}` : isText(argument) ? "text" : argument.kind === "integers" ? "whole numbers" : "numbers";
    const legend = make("legend", { textContent: `${argument.name}: ${form}`, title: `${argument.dtype}[${argument.shape.join(", ")}]` });
    return make("fieldset", {}, legend, editor);
  });
  for (const { name, value } of description.numbers) {
    const field = make("input", { type: "number", step: "any", value: String(value) });
    field.addEventListener("input", answerSoon);
    readers.set(name, () => Number(field.value));
    parts.push(make("fieldset", {}, make("legend", { textContent: name }), field));
  }
  $("inputs").replaceChildren(...parts);
  const writes = textOutput() !== null;
  $("ask").textContent = writes ? "Write" : "Answer";
  $("ask").addEventListener("click", () => (writes ? write() : answer()));
}

async function given() {
  return Object.fromEntries([...readers].map(([name, read]) => {
    const value = read();
    return [name, value?.shape === null ? value.data : value];
  }));
}

// --- answers ----------------------------------------------------------------------------------------------------------

/** Return the text input and the output that has a score for each next token, or null. */
function textOutput() {
  const { arguments: inputs, returns } = model.functions[answering];
  const input = inputs.find(isText);
  const output = returns.find((r) => r.shape.length >= 2 && r.shape.at(-1) === vocabulary?.length && r.shape.at(-2) === input?.shape.at(-1));
  return input && output ? { input, output } : null;
}

/** Return the output that has one row of scores for each example, or null. */
function scoresOutput() {
  const { returns } = model.functions[answering];
  return returns.find((r) => r.dtype.startsWith("float") && r.shape.length >= 1 && r.shape.length <= 2 && r.shape.at(-1) >= 2 && r.shape.at(-1) <= 1000) ?? null;
}

const labelOf = (i) => labels?.[i] ?? String(i);

function bars(scores) {
  const parts = shares(scores);
  const order = parts.map((_, i) => i).sort((a, b) => parts[b] - parts[a]).slice(0, 5);
  const cells = order.flatMap((i, n) => {
    const meter = make("meter", { min: 0, max: 1, value: parts[i] });
    meter.setAttribute("aria-label", labelOf(i));
    return [make("b", { textContent: labelOf(i), className: n ? "" : "first" }), meter, make("span", { textContent: `${(100 * parts[i]).toFixed(1)} %` })];
  });
  return make("div", { className: "bars" }, ...cells);
}

let asked = 0;

/** Answer once the input has come to rest; a newer input takes the place of an older one. */
function answerSoon() {
  if (textOutput()) return;
  clearTimeout(asked);
  asked = setTimeout(answer, 60);
}

async function answer() {
  const result = await model.run(answering, await given(), { latest: true });
  if (result.status === "aborted") return;
  if (result.status === "failed") {
    fail(result.error);
    return;
  }
  if ($("status").className === "bad") say(`Ready on ${model.deviceName}.`);
  const pictures = model.functions[answering].returns.filter(isPicture);
  const scores = pictures.length ? null : labels || model.functions[answering].arguments.some((a) => a.kind === "image") ? scoresOutput() : null;
  if (scores) {
    const { data, shape } = result.outputs[scores.name];
    $("answers").replaceChildren(bars(Array.from(data.slice(0, shape.at(-1)))));
    return;
  }
  const words = make("pre", { textContent: summary(result.outputs).replaceAll("; ", "\n") });
  $("answers").replaceChildren(...pictures.map((r) => painted(result.outputs[r.name], r.name)), words);
}

/** Whether an output looks like pictures: one or three channels, each side of four pixels at least. */
function isPicture({ dtype, shape }) {
  const [channels, height, width] = shape.slice(-3);
  return shape.length >= 3 && shape.length <= 4 && (dtype.startsWith("float") || dtype === "uint8") && (channels === 1 || channels === 3) && Math.min(height, width) >= 4;
}

function painted(output, name) {
  const canvas = make("canvas", { className: "painted" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  paint(canvas, output, 0, output.dtype);
  return canvas;
}

async function write() {
  if (writing) {
    writing = false;
    return;
  }
  writing = true;
  $("ask").textContent = "Stop";
  const { input, output } = textOutput();
  const area = $("inputs").querySelector("textarea");
  const length = input.shape.at(-1);
  const ids = [...area.value].map((c) => vocabulary.indexOf(c)).filter((i) => i >= 0);
  if (!ids.length) ids.push(0);
  const out = make("pre", { textContent: ids.map((i) => vocabulary[i]).join("") });
  $("answers").replaceChildren(out);
  try {
    for (let n = 0; n < PROMPT && writing; n++) {
      const seen = ids.slice(-length);
      const data = new Int32Array(elementsOf(input.shape));
      data.set(seen);
      const outputs = await model[answering]({ ...(await given()), [input.name]: { data, shape: input.shape } });
      const size = vocabulary.length;
      const next = drawn(outputs[output.name].data.slice((seen.length - 1) * size, seen.length * size));
      ids.push(next);
      out.textContent += vocabulary[next];
    }
  } catch (error) {
    fail(error);
  }
  writing = false;
  $("ask").textContent = "Write";
}

/** Show examples with what the program now makes of them. */
async function look() {
  looked = performance.now();
  if (judging && batches[judging].length) {
    const outputs = await model[judging](batches[judging][0]);
    const words = Object.entries(outputs).filter(([, o]) => o?.data?.length === 1).map(([name, o]) => `${name} ${text(o.data[0])}`);
    $("fourth-name").textContent = judging;
    $("size").textContent = words[0]?.split(" ").at(-1) ?? "–";
    $("size").title = words.join(", ");
  }
  const batch = answering ? batches[answering][0] : null;
  if (!batch) return;
  const { arguments: inputs } = model.functions[answering];
  const image = inputs.find((a) => a.kind === "image");
  const wording = textOutput();
  const scores = scoresOutput();
  if (!(image && scores) && !wording) return;
  const outputs = await model[answering](batch);
  let score = "";
  if (image && scores) {
    const { data, shape } = outputs[scores.name];
    const count = Math.min(24, elementsOf(image.shape.slice(0, -3)));
    const size = shape.at(-1);
    const { targets } = model.program;
    let right = 0;
    const nodes = Array.from({ length: count }, (_, i) => {
      const canvas = document.createElement("canvas");
      paint(canvas, batch[image.name], i, image.dtype);
      const parts = shares(Array.from(data.slice(i * size, (i + 1) * size)));
      const best = parts.indexOf(Math.max(...parts));
      const read = `${labelOf(best)} · ${Math.round(100 * parts[best])} %`;
      const wrong = targets && targets[i] !== best;
      right += !wrong;
      return make("figure", {}, canvas, make("figcaption", { textContent: wrong ? `${read}, is\u00a0${labelOf(targets[i])}` : read, className: wrong ? "wrong" : "" }));
    });
    $("samples").replaceChildren(...nodes);
    score = targets ? `, ${right} of ${count} right` : "";
  } else {
    const { input, output } = wording;
    const length = input.shape.at(-1);
    const best = Array.from({ length }, (_, t) => {
      const row = outputs[output.name].data.slice(t * vocabulary.length, (t + 1) * vocabulary.length);
      return row.indexOf(Math.max(...row));
    });
    // Line breaks are shown, so that both lines stay one above the other.
    const words = (ids) => ids.map((i) => vocabulary[Number(i)]).join("").replaceAll("\n", "↵").replaceAll("\t", "⇥");
    $("samples").className = "text";
    $("samples").replaceChildren(
      make("pre", { textContent: `reads    ${words(Array.from(batch[input.name].data.slice(0, length)))}` }),
      make("pre", { textContent: `expects  ${words(best)}` }),
    );
  }
  $("sampling").hidden = false;
  $("sampled").textContent = (values.length ? `after ${values.length} steps` : "before any step here") + score;
}

// --- start ------------------------------------------------------------------------------------------------------------

const isOne = (r) => r.dtype.startsWith("float") && r.shape.every((n) => n === 1);

/** Decide which function trains, which answers, and which only judges. */
function roles() {
  const all = Object.entries(model.functions);
  const writes = all.filter(([, f]) => f.writes);
  const reads = all.filter(([, f]) => !f.writes);
  const tells = ([, f]) => f.returns.length > 0 && f.returns.every(isOne);
  training = (writes.find(([, f]) => f.returns.some(isOne)) ?? writes[0])?.[0] ?? null;
  answering = reads.find((entry) => !tells(entry))?.[0] ?? null;
  judging = reads.find(tells)?.[0] ?? null;
  // Something is always there to be run.
  if (!training && !answering) [training, judging] = [judging ?? all[0][0], null];
}

async function start() {
  model = await opened({ persist: true, resume: true });
  ({ labels, vocabulary } = model.program);
  roles();
  batches = await examples(model);
  describe();
  if (training) {
    $("training").hidden = false;
    const numbers = model.functions[training].returns.filter(isOne).map((r) => r.name);
    resultName = numbers.shift() ?? null;
    for (const name of numbers) others.set(name, []);
    if (beside()) [$("fourth-name").textContent, $("size").textContent] = [beside(), "–"];
    $("run").textContent = doing();
    $("random").hidden = !model.program.initial;
    if (model.program.initial) $("reset").textContent = "Trained weights";
    $("chart-name").textContent = $("last-name").textContent = resultName ?? "Result";
    if (perStep() > 1) $("speed-unit").textContent = "examples/s";
    if (!resultName) {
      $("curve").hidden = true;
      $("values").classList.add("wide");
      $("listing").open = true;
    }
    $("count").textContent = stepsSoFar();
    addSettings();
    draw();
    const ready = batches[training].length > 0;
    if (!ready) $("status").textContent += ` This export has no example inputs; call m.${training}(…) from your own page, or export with examples=[…].`;
    for (const id of ["run", "once", "reset"]) $(id).disabled = !ready;
    for (const id of ["download", "upload"]) $(id).disabled = !model.program.states.length;
    // Calls of earlier visits, from this browser's own storage.
    if (model.resumed?.calls) $("status").textContent += ` Going on from ${model.resumed.calls} calls kept in this browser; “${$("reset").textContent}” drops them.`;
  } else {
    $("listing").hidden = true;
  }
  if (answering) {
    $("trying").hidden = false;
    addInputs();
    $("ask").disabled = false;
  }
  $("profile").disabled = !(batches[training ?? answering].length || answering);
  $("profile").addEventListener("click", measure);
  $("run").addEventListener("click", run);
  $("random").addEventListener("click", startFromRandom);
  $("once").addEventListener("click", once);
  $("reset").addEventListener("click", async () => {
    running = false;
    model.destroyed = true;
    await model.forget().catch(() => {});
    location.reload();
  });
  $("download").addEventListener("click", async () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await model.state()], { type: "application/octet-stream" }));
    link.download = "weights.safetensors";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  $("upload").addEventListener("change", async (event) => {
    try {
      await model.loadState(await event.target.files[0].arrayBuffer());
      say(`Ready on ${model.deviceName}, with the uploaded weights.`);
      await look();
    } catch (error) {
      fail(error);
    }
  });
  $("chart").addEventListener("pointermove", (event) => {
    if (!values.length) return;
    const box = $("chart").getBoundingClientRect();
    const share = (event.clientX - box.left - 52) / (box.width - 60);
    const at = Math.round(share * Math.max(values.length - 1, 8));
    draw(Math.max(0, Math.min(values.length - 1, at)));
  });
  $("chart").addEventListener("pointerleave", () => draw());
  addEventListener("resize", () => training && draw());
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden" && values.length && !model.destroyed) model.save().catch(() => {});
  });
  // For the console, and for tests.
  globalThis.model = model;
  await look();
  $("status").dataset.ready = "yes";
}

start().catch(fail);
