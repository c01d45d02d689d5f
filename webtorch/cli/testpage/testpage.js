/** Runs the tests of a test page on WebGPU, one after another, and shows what each gave. */

import { fetchFile, open, readSafetensors, requestDevice } from "./runtime.js";

const $ = (id) => document.getElementById(id);
// Tests whose kernels are being compiled while another one runs.
const AHEAD = 8;
// Milliseconds after which a test counts as stuck. A software adapter on a busy machine is slow.
const PATIENCE = 120_000;
// Wrong elements that are shown of one result.
const SHOWN = 12;
const TYPES = { float32: Float32Array, int32: Int32Array, bool: Uint8Array };
let page = null;
let tensors = null;
let device = null;
let running = false;
const results = [];
const groups = new Map();

const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

// --- running ----------------------------------------------------------------------------------------------------------

function begin(number) {
  const { program, error } = page.tests[number];
  if (error) return Promise.resolve(null);
  const kernels = program.kernels.map((k) => page.kernels[k]);
  const weights = Object.fromEntries(program.states.map((s) => [s.name, tensors[`${number}/${s.name}`]]));
  const opened = open({ ...program, kernels }, weights, { device });
  // Its failure is that of the test, which waits for it later.
  opened.catch(() => {});
  return opened;
}

/** Return the wrong elements of a result: {wrong, worst, rows}. */
function compared(got, want, { rtol, atol }) {
  let wrong = 0;
  let worst = 0;
  const rows = [];
  for (let i = 0; i < want.length; i++) {
    const [g, w] = [got[i], want[i]];
    if (g === w || (Number.isNaN(g) && Number.isNaN(w))) continue;
    const off = Math.abs(g - w);
    if (off <= atol + rtol * Math.abs(w)) {
      worst = Math.max(worst, off);
      continue;
    }
    wrong += 1;
    worst = Number.isNaN(off) ? NaN : Math.max(worst, off);
    if (rows.length < SHOWN) rows.push([i, w, g]);
  }
  return { wrong, worst, rows };
}

/** Wait for a test's work. What is stuck keeps its device: the tests that follow get another one. */
async function inTime(entry, work) {
  const started = performance.now();
  let clock = 0;
  const stuck = new Promise((_, reject) => {
    clock = setInterval(() => {
      const ms = performance.now() - started;
      post("progress", { slow: entry, ms });
      if (ms < PATIENCE) return;
      device = null;
      reject(new Error(`no answer after ${PATIENCE / 1000} s`));
    }, 5000);
  });
  return Promise.race([work, stuck]).finally(() => clearInterval(clock));
}

async function test(number, opening) {
  const { entry, expected, program, error: unrecorded } = page.tests[number];
  if (unrecorded) return { status: "failed", why: `not recorded: ${unrecorded}`, kernels: [] };
  const started = performance.now();
  let engine = null;
  const failed = (why, more = {}) => ({ status: "failed", why, kernels: program.kernels, ...more });
  try {
    const outputs = await inTime(entry, (async () => {
      engine = await opening;
      return engine.compute();
    })());
    // What the device has to say comes after its work.
    engine.check();
    const problems = [];
    let worst = 0;
    expected.forEach((e, i) => {
      const got = outputs[String(i)];
      if (got.dtype !== e.dtype || got.shape.join() !== e.shape.join()) {
        problems.push({ result: i, why: `result ${i}: ${got.dtype}[${got.shape}] for ${e.dtype}[${e.shape}]`, rows: [] });
        return;
      }
      if (e.free) return;
      const { dtype, bytes } = tensors[`${number}=${i}`];
      const found = compared(got.data, new TYPES[dtype](bytes.slice().buffer), e);
      if (!Number.isNaN(found.worst)) worst = Math.max(worst, found.worst);
      if (found.wrong) {
        const allowed = e.rtol ? `; allowed: ${e.atol.toPrecision(2)} and ${e.rtol.toPrecision(2)} of the value` : "";
        problems.push({ result: i, why: `result ${i}: ${found.wrong} of ${got.data.length} elements are wrong${allowed}`, rows: found.rows, shape: e.shape });
      }
    });
    const ms = performance.now() - started;
    return problems.length ? failed(problems.map((p) => p.why).join("\n"), { problems, ms }) : { status: "passed", worst, ms };
  } catch (error) {
    return failed(error.message);
  } finally {
    engine?.destroy();
  }
}

async function run(numbers) {
  if (running) {
    running = false;
    return;
  }
  running = true;
  $("run").textContent = "Stop";
  $("again").disabled = true;
  for (const n of numbers) results[n] = null;
  tell();
  let opening = [];
  let opened = device;
  let told = performance.now();
  for (let i = 0; i < numbers.length && running; i++) {
    if (!device || device !== opened) {
      opened = device = await requestDevice({});
      opening = [];
      $("status").textContent = `Running on ${device.webtorchName} …`;
    }
    while (opening.length < AHEAD && i + opening.length < numbers.length) opening.push(begin(numbers[i + opening.length]));
    results[numbers[i]] = await test(numbers[i], opening.shift());
    mark(numbers[i]);
    if (performance.now() - told > 250) {
      told = performance.now();
      tell();
      await new Promise((resolve) => setTimeout(resolve));
      post("progress", { done: i + 1, of: numbers.length });
    }
  }
  for (const other of opening) other.then((engine) => engine?.destroy(), () => {});
  running = false;
  $("run").textContent = "Run all";
  tell();
  $("export").disabled = false;
}

const all = () => page.tests.map((_, n) => n);

// --- reports ----------------------------------------------------------------------------------------------------------

function report() {
  const tests = page.tests.map(({ entry, kind, call }, n) => ({ entry, kind, call, ...(results[n] ?? { status: "waiting" }) }));
  for (const t of tests) if (t.kernels) t.wgsl = t.kernels.map((k) => page.kernels[k].code);
  const count = (status) => tests.filter((t) => t.status === status).length;
  return {
    device: device?.webtorchName ?? null, browser: navigator.userAgent, pytorch: page.pytorch, date: new Date().toISOString(),
    passed: count("passed"), failed: count("failed"), waiting: count("waiting"), tests, left: page.left,
  };
}

/** Tell the server that asked for it. */
function post(kind, value) {
  if (location.search !== "?report") return Promise.resolve();
  return fetch(kind, { method: "POST", body: JSON.stringify(value, (_, v) => (typeof v === "number" && !Number.isFinite(v) ? String(v) : v)) });
}

// --- showing ----------------------------------------------------------------------------------------------------------

const statusOf = (n) => results[n]?.status ?? "waiting";

function tell() {
  const counts = { passed: 0, failed: 0, waiting: 0 };
  for (const n of all()) counts[statusOf(n)] += 1;
  for (const [name, count] of Object.entries(counts)) $(name).textContent = count.toLocaleString("en");
  $("failed").className = counts.failed ? "some" : "";
  $("passed").className = !counts.failed && !counts.waiting ? "all" : "";
  $("progress").value = (counts.passed + counts.failed) / page.tests.length;
  $("again").disabled = running || !counts.failed;
  if (!running && device) {
    const end = counts.waiting ? `${counts.waiting} still wait.` : counts.failed ? `${counts.failed} failed.` : "All passed.";
    $("status").textContent = `On ${device.webtorchName}: ${end}`;
    if (counts.failed || $("which").value) show();
  }
}

/** Show the state of the operation that a test belongs to. */
function mark(number) {
  const group = groups.get(page.tests[number].entry);
  const states = group.numbers.map(statusOf);
  const failed = states.filter((s) => s === "failed").length;
  const passed = states.filter((s) => s === "passed").length;
  group.node.className = failed ? "failed" : passed === states.length ? "passed" : "";
  group.count.textContent = failed ? `${failed} of ${states.length} failed` : `${passed} of ${states.length}`;
  if (group.node.open) fill(group);
}

const number = (v) => (Number.isInteger(v) ? String(v) : v.toPrecision(8));

/** The position of an element in a result of some shape, as Python writes it. */
function place(i, shape) {
  const at = [];
  for (let d = shape.length - 1; d >= 0; d--) {
    at.unshift(i % shape[d]);
    i = Math.floor(i / shape[d]);
  }
  return `[${at.join(", ")}]`;
}

function fill(group) {
  const nodes = group.numbers.filter(wanted).map((n) => {
    const { kind, call } = page.tests[n];
    const result = results[n];
    const detail = result?.status === "passed" ? `largest difference ${result.worst ? result.worst.toExponential(1) : 0}, ${result.ms.toFixed(0)} ms` : (result?.status ?? "waiting");
    const node = make("div", { className: `test ${statusOf(n)}` }, make("i"), make("code", { textContent: call }), make("small", { textContent: `${kind} · ${detail}` }));
    if (result?.status === "failed") {
      node.append(make("p", { className: "why", textContent: result.why }));
      for (const { rows, shape } of result.problems ?? []) {
        const body = rows.map(([i, want, got]) => make("tr", {}, ...[place(i, shape), number(want), number(got), (got - want).toExponential(1)].map((t) => make("td", { textContent: t }))));
        const head = make("tr", {}, ...["element", "expected", "got", "difference"].map((t) => make("th", { textContent: t })));
        if (rows.length) node.append(make("table", {}, head, ...body));
      }
      for (const k of result.kernels) node.append(make("pre", { textContent: page.kernels[k].code }));
    }
    return node;
  });
  group.node.replaceChildren(group.node.firstChild, ...nodes);
}

function wanted(n) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const { entry, kind, call } = page.tests[n];
  const line = `${entry} ${kind} ${call} ${statusOf(n)}`.toLowerCase();
  return words.every((w) => line.includes(w)) && (!$("which").value || statusOf(n) === $("which").value);
}

function show() {
  for (const group of groups.values()) {
    group.node.hidden = !group.numbers.some(wanted);
    if (group.node.open) fill(group);
  }
}

function list() {
  page.tests.forEach(({ entry }, n) => {
    let group = groups.get(entry);
    if (!group) {
      const count = make("span", { className: "unit" });
      const node = make("details", {}, make("summary", {}, make("i"), make("b", { textContent: entry }), count));
      groups.set(entry, (group = { node, count, numbers: [] }));
      node.addEventListener("toggle", () => node.open && fill(group));
    }
    group.numbers.push(n);
  });
  for (const { node, count, numbers } of groups.values()) {
    count.textContent = `${numbers.length} test${numbers.length > 1 ? "s" : ""}`;
    $("list").append(node);
  }
  $("entries").textContent = groups.size;
  $("left").textContent = `${page.left.length}`;
  $("reasons").append(...page.left.map(({ entry, why }) => make("tr", {}, make("td", { textContent: entry }), make("td", { textContent: why }))));
  $("oracle").textContent = `PyTorch ${page.pytorch}`;
}

function fail(error) {
  $("status").className = "bad";
  $("status").textContent = error.message;
  return post("report", { error: error.message, browser: navigator.userAgent });
}

async function start() {
  const base = new URL("./", location.href);
  const [text, file] = await Promise.all([fetchFile(base, "tests.json"), fetchFile(base, "tests.safetensors")]);
  page = JSON.parse(new TextDecoder().decode(text));
  tensors = readSafetensors(file, "tests.safetensors");
  list();
  tell();
  $("status").textContent = `${page.tests.length.toLocaleString("en")} tests of ${groups.size} operations are ready.`;
  $("run").disabled = false;
  $("run").addEventListener("click", () => run($("filter").value || $("which").value ? all().filter(wanted) : all()).catch(fail));
  $("again").addEventListener("click", () => run(all().filter((n) => statusOf(n) === "failed")).catch(fail));
  $("filter").addEventListener("input", () => {
    $("run").textContent = running ? "Stop" : $("filter").value ? "Run these" : "Run all";
    show();
  });
  $("which").addEventListener("change", show);
  $("export").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(report(), null, 1)], { type: "application/json" }));
    link.download = "webtorch-tests.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  if (location.search === "?report") {
    await run(all());
    await post("report", report());
  }
}

start().catch(fail);
