// Run buttons of the documentation's programs: Python, webtorch and the tab's graphics device, by the worker of the
// playground that lies beside these pages. A program of a page goes on from those before it.

const playground = new URL("../playground/", import.meta.url);
const marks = document.getElementById("runs-here");
// The page's programs in their order: those that ran already in this worker are not run again.
const blocks = [];
// A program that is stopped by force takes the worker, and with it all names; milliseconds it may take to end by itself.
const PATIENCE = 4000;
let worker = null;
let opened = null;
let current = null;
// Shared with the worker where the page may have such memory: Python looks there for an interrupt.
let interrupt = null;

function comment(element) {
  let node = element.previousSibling;
  while (node?.nodeType === Node.TEXT_NODE && !node.data.trim()) node = node.previousSibling;
  return node?.nodeType === Node.COMMENT_NODE ? node.data.trim() : "";
}

function element(tag, className, text = "") {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}

function prepare(box) {
  const said = comment(box);
  if (/^(page: no|not run)/.test(said)) return;
  const code = box.querySelector("code").textContent;
  const first = /^run first:\n([^]*)$/.exec(said)?.[1] ?? "";
  const block = { code: `${first}\n${code}`, done: false };
  const bar = element("div", "run-bar");
  const button = element("button", "md-button run", "Run");
  const open = Object.assign(element("a", "run-open", "Open in the playground"), { href: new URL("index.html", playground).href });
  block.status = element("span", "run-status");
  block.status.setAttribute("role", "status");
  block.output = element("div", "run-output");
  block.output.hidden = true;
  bar.append(button, block.status, open);
  // A whole program is long: its button stands above it.
  if (marks.dataset.argv) box.before(bar, block.output);
  else box.after(bar, block.output);
  blocks.push(block);
  button.onclick = () => (current?.button === button ? stop() : run(block, button));
  link(open, blocks.map((one) => one.code.trim()).join("\n\n"));
}

async function link(anchor, code) {
  const packed = new Blob([code + "\n"]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(packed).arrayBuffer());
  const text = btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));
  anchor.hash = `code=${text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

function print(kind, text) {
  const { output } = current;
  let last = output.lastElementChild;
  if (last?.tagName !== "PRE" || last.className !== kind) output.append((last = element("pre", kind)));
  const whole = last.textContent + text;
  last.textContent = whole.includes("\r") ? whole.replace(/\r\n/g, "\n").replace(/[^\n\r]*\r+(?=[^\n\r])/g, "") : whole;
}

function picture({ mime, title, content }) {
  if (mime === "text/html") {
    current.output.append(new DOMParser().parseFromString(content, "text/html").querySelector("figure"));
    return;
  }
  const image = Object.assign(new Image(), { alt: title || "picture", src: URL.createObjectURL(new Blob([content], { type: mime })) });
  current.output.append(image);
}

async function start() {
  const site = await (await fetch(new URL("playground.json", playground))).json();
  worker = new Worker(new URL("worker.js", playground), { type: "module" });
  interrupt = globalThis.crossOriginIsolated ? new Uint8Array(new SharedArrayBuffer(1)) : null;
  return new Promise((resolve, reject) => {
    const receive = {
      status: ({ text }) => (current.status.textContent = text),
      ready: resolve,
      text: ({ parts }) => parts.forEach(([kind, text]) => print(kind, text)),
      picture,
      failed: ({ text }) => {
        reject(new Error(text));
        current?.finish?.({ ok: false, error: text });
      },
      done: (result) => current?.finish?.(result),
    };
    worker.onmessage = ({ data }) => receive[data.type]?.(data);
    worker.onerror = () => reject(new Error("the worker's script could not be loaded"));
    worker.postMessage({ type: "start", wheel: site.wheel, bytecode: site.bytecode, files: site.data, packages: site.packages, interrupt });
  });
}

/** Interrupts the program that runs; one that does not end takes the worker along. */
function stop() {
  const { block } = current;
  current.stopping = true;
  block.status.textContent = "Stopping …";
  worker?.postMessage({ type: "stop" });
  if (interrupt) setTimeout(() => current?.block === block && (interrupt[0] = 2), 100);
  setTimeout(() => current?.block === block && end(), interrupt ? PATIENCE : 300);
}

function end() {
  worker?.terminate();
  opened = null;
  for (const one of blocks) one.done = false;
  current.finish?.({ ok: false, stopped: true });
}

async function run(block, button) {
  const others = [...document.querySelectorAll("button.run")].filter((one) => one !== button);
  for (const one of others) one.disabled = true;
  button.textContent = "Stop";
  const before = blocks.slice(0, blocks.indexOf(block)).filter((one) => !one.done);
  try {
    begin(block, button);
    const about = await Promise.race([(opened ??= start()), new Promise((resolve) => (current.finish = resolve))]);
    if (about.stopped) {
      block.status.textContent = "stopped";
      return;
    }
    await Promise.resolve(marks.dataset.argv && compute(`import sys\nsys.argv = [${marks.dataset.argv}]`));
    for (const one of [...before, block]) {
      begin(one, button);
      one.status.textContent = "Running …";
      const result = await compute(one.code);
      // An interrupt may also come while Python begins or ends.
      result.stopped ||= current.stopping && !result.ok;
      if (result.error && !result.stopped) print("error", result.error);
      const where = about.device || `the CPU: ${about.processor}`;
      one.status.textContent = result.ok ? `${(result.milliseconds / 1000).toFixed(2)} s, ${where}` : result.stopped ? "stopped" : "failed";
      one.output.hidden = !one.output.childElementCount;
      if (!result.ok) break;
      one.done = true;
    }
  } catch (error) {
    block.status.textContent = `Python could not be started: ${error.message}`;
    opened = null;
    worker?.terminate();
  } finally {
    current = null;
    button.textContent = "Run";
    for (const one of others) one.disabled = false;
    button.focus({ preventScroll: true });
  }
}

/** What comes now is a block's. */
function begin(block, button) {
  current = { block, button, output: block.output, status: block.status };
  block.output.replaceChildren();
  block.output.hidden = false;
}

function compute(code) {
  return new Promise((resolve) => {
    current.finish = resolve;
    worker.postMessage({ type: "run", code });
  });
}

if (marks) document.querySelectorAll(".language-python").forEach(prepare);
