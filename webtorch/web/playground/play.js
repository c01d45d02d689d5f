// The page: editor, buttons, output. Python is in worker.js.

import { Editor } from "./editor.js";

const at = (id) => document.getElementById(id);
const [output, status, runButton, stopButton, resetButton, picker] = ["output", "status", "run", "stop", "reset", "example"].map(at);
const site = await (await fetch("playground.json")).json();
// A program that is ended by force loses its names; this many milliseconds it may take to end by itself,
// or as many as the page's body says (data-patience).
const PATIENCE = 4000;
const MOST_TEXT = 200_000;

let worker = null;
let interrupt = null;
let state = "starting";
let about = null;
let began = 0;
let ending = 0;
let striking = 0;
let examples = {};
const pictures = new Map();

// What the tests and the curious may read.
globalThis.playground = { get state() { return state; }, get about() { return about; } };

const editor = new Editor({
  area: at("code"), colours: at("colours"), lines: at("lines"),
  changed: (text) => {
    remember("program", text);
    own();
  },
});

function remember(name, text) {
  try {
    if (text === null) localStorage.removeItem(`webtorch.${name}`);
    else localStorage.setItem(`webtorch.${name}`, text);
  } catch {
    // Private windows may have no storage; nothing depends on it.
  }
}

function remembered(name) {
  try {
    return localStorage.getItem(`webtorch.${name}`);
  } catch {
    return null;
  }
}

function say(text, kind) {
  status.textContent = text;
  status.className = kind;
}

function become(next) {
  state = next;
  runButton.disabled = state !== "ready";
  resetButton.disabled = state !== "ready" && state !== "failed";
  stopButton.disabled = state !== "running" && state !== "stopping";
  if (state === "running") say("Running …", "busy");
  if (state === "ready") say(idle(), about.problem ? "bad" : "ready");
}

function idle() {
  return about.problem ? `No WebGPU here. CPU: ${about.processor}` : about.device;
}

// -- output

function scrolled(add) {
  const bottom = output.scrollHeight - output.scrollTop - output.clientHeight < 60;
  add();
  if (bottom) output.scrollTop = output.scrollHeight;
}

function print(kind, text) {
  scrolled(() => {
    let last = output.lastElementChild;
    if (last?.tagName !== "PRE" || last.className !== kind) {
      last = document.createElement("pre");
      last.className = kind;
      output.append(last);
    }
    let whole = last.textContent + text;
    // A carriage return starts the line again, as progress bars want it.
    if (whole.includes("\r")) whole = whole.replace(/\r\n/g, "\n").replace(/[^\n\r]*\r+(?=[^\n\r])/g, "");
    if (whole.length > MOST_TEXT) whole = "…\n" + whole.slice(whole.indexOf("\n", whole.length - MOST_TEXT / 2) + 1);
    last.textContent = whole;
  });
}

function fold(text) {
  scrolled(() => {
    const details = document.createElement("details");
    details.append(
      Object.assign(document.createElement("summary"), { textContent: "Calls inside webtorch" }),
      Object.assign(document.createElement("pre"), { textContent: text }),
    );
    output.append(details);
  });
}

function note(text) {
  print("note", text + "\n");
}

function picture({ key, mime, title, content }) {
  scrolled(() => {
    let figure;
    if (mime === "text/html") {
      figure = new DOMParser().parseFromString(content, "text/html").querySelector("figure");
    } else {
      figure = document.createElement("figure");
      const image = new Image();
      image.src = URL.createObjectURL(new Blob([content], { type: mime }));
      image.alt = title || "picture";
      image.onload = () => URL.revokeObjectURL(image.src);
      if (title) figure.append(Object.assign(document.createElement("figcaption"), { textContent: title }));
      figure.append(image);
    }
    const old = key && pictures.get(key);
    if (old?.isConnected) old.replaceWith(figure);
    else output.append(figure);
    if (key) pictures.set(key, figure);
  });
}

function clear() {
  output.replaceChildren();
  pictures.clear();
  at("time").textContent = "";
}

// -- the worker

function start() {
  worker?.terminate();
  become("starting");
  say("Starting …", "busy");
  interrupt = globalThis.crossOriginIsolated ? new Uint8Array(new SharedArrayBuffer(1)) : null;
  worker = new Worker("worker.js", { type: "module" });
  worker.onmessage = ({ data }) => receive(data);
  worker.onerror = (event) => {
    event.preventDefault();
    fail(`The worker stopped: ${event.message || "its script could not be loaded"}`);
  };
  worker.postMessage({ type: "start", wheel: site.wheel, bytecode: site.bytecode, files: site.data, packages: site.packages, interrupt });
}

function fail(text) {
  become("failed");
  say("Python is not running", "bad");
  print("error", `${text}\nReset starts it again.\n`);
}

const RECEIVE = {
  status: ({ text }) => say(text, "busy"),
  ready: (data) => {
    about = data;
    become("ready");
    if (about.problem) note(`${about.problem}\nPrograms run on the CPU: ${about.processor}.`);
    if (!about.pauses) {
      note("This browser cannot pause Python (no JSPI). Instead of x.item() and print(x) write `await x.item_async()` and `await x.tolist_async()`.");
    }
  },
  stopping: () => clearTimeout(striking),
  text: ({ parts }) => parts.forEach(([kind, text]) => print(kind, text)),
  picture,
  done: ({ ok, stopped, error, whole, line, processor, milliseconds }) => {
    about.processor = processor;
    clearTimeout(ending);
    clearTimeout(striking);
    if (stopped) note("Stopped.");
    else if (error) {
      print("error", error);
      if (whole !== error) fold(whole);
    }
    if (!ok && line) editor.mark(line);
    const seconds = milliseconds / 1000;
    at("time").textContent = `${stopped ? "stopped after" : ok ? "done in" : "failed after"} ${seconds < 10 ? seconds.toFixed(2) : seconds.toFixed(0)} s`;
    become("ready");
  },
  failed: ({ during, text }) => fail(during === "start" ? `Python could not be started: ${text}` : text),
};

function receive(data) {
  RECEIVE[data.type](data);
}

function run() {
  if (state !== "ready") return;
  editor.mark(0);
  clear();
  become("running");
  began = performance.now();
  worker.postMessage({ type: "run", code: editor.text });
}

function stop() {
  if (state !== "running" && state !== "stopping") return;
  const again = state === "stopping";
  become("stopping");
  say("Stopping …", "busy");
  clearTimeout(ending);
  if (again) {
    end();
    return;
  }
  // A worker that waits hears this; one that computes looks at the shared memory: KeyboardInterrupt.
  worker.postMessage({ type: "stop" });
  if (interrupt) striking = setTimeout(() => (interrupt[0] = 2), 100);
  ending = setTimeout(end, Number(document.body.dataset.patience ?? PATIENCE));
}

function end() {
  clearTimeout(ending);
  clearTimeout(striking);
  const why = interrupt ? "it did not end by itself" : "this page is not cross-origin isolated, so a loop that never waits cannot be interrupted";
  at("time").textContent = `ended after ${((performance.now() - began) / 1000).toFixed(1)} s`;
  note(`Ended by force (${why}): Python starts again, without the names that were defined.`);
  start();
}

// -- buttons and programs

setInterval(() => {
  if (state === "running") at("time").textContent = `${((performance.now() - began) / 1000).toFixed(1)} s`;
}, 100);
runButton.onclick = run;
stopButton.onclick = stop;
at("clear").onclick = clear;
resetButton.onclick = () => {
  if (state === "failed") {
    clear();
    start();
    return;
  }
  worker.postMessage({ type: "reset" });
  clear();
  note("Every name is forgotten.");
};
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
    event.preventDefault();
    run();
  }
});

async function pack(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join("")).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
}

at("share").onclick = async () => {
  history.replaceState(null, "", `#code=${await pack(editor.text)}`);
  const button = at("share");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "It is in the address";
  }
  setTimeout(() => (button.textContent = "Copy link"), 1600);
};

/** The program is the reader's own now: the examples stay as they are. */
function own() {
  if (![...picker.options].some((option) => option.value === "mine")) picker.append(new Option("My program", "mine"));
  picker.value = "mine";
}

async function choose(name) {
  picker.value = name;
  if (name === "mine") editor.text = remembered("program") ?? "";
  else editor.text = examples[name] ??= await (await fetch(`examples/${name}.py`)).text();
}

async function open() {
  for (const { name, title } of site.examples) picker.append(new Option(title, name));
  const mine = remembered("program");
  const linked = /^#code=([\w-]+)$/.exec(location.hash);
  if (mine !== null) own();
  if (linked) {
    try {
      editor.text = await unpack(linked[1]);
      own();
      return;
    } catch {
      note("The program in this link is damaged; here is an example instead.");
    }
  }
  await choose(mine !== null ? "mine" : site.examples[0].name);
}

picker.onchange = () => choose(picker.value);
start();
await open();
