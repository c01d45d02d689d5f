// Python runs here, beside the page: Pyodide, the webtorch wheel and the graphics device. The page sends
// {start, run, stop, reset}; what comes back is {status, ready, text, picture, stopping, done, failed}.

import { loadPyodide } from "./pyodide/pyodide.mjs";
import * as browser from "./browser.js";

let python = null;
let session = null;
// Each text is sent at once, as a program that then computes lets no timer run. A loop that prints would send a
// message for every line: what comes after AT_ONCE messages waits until PIECE milliseconds have passed for one more.
const AT_ONCE = 100;
const PIECE = 40;
let pending = [];
let allowed = AT_ONCE;
let counted = 0;

function flush() {
  if (!pending.length) return;
  postMessage({ type: "text", parts: pending });
  pending = [];
  allowed = Math.max(0, allowed - 1);
}

function write(stream, text) {
  const last = pending.at(-1);
  if (last && last[0] === stream) last[1] += text;
  else pending.push([stream, text]);
  const now = performance.now();
  allowed = Math.min(AT_ONCE, allowed + (now - counted) / PIECE);
  counted = now;
  if (allowed >= 1) flush();
}

function show(key, mime, title, data) {
  flush();
  const content = typeof data === "string" ? data : data.toJs();
  data.destroy?.();
  postMessage({ type: "picture", key, mime, title, content });
}

// Where Python looks for an interrupt. Memory shared with the page, where the browser allows it; else the page's
// message can set it only while Python waits.
let interrupted = new Uint8Array(1);
let pausing = false;
// Packages of Pyodide that the page has, which are loaded when a program imports them.
let packages = [];

function pause(on) {
  pausing = on;
  python.setInterruptBuffer(on ? undefined : interrupted);
}

function stop() {
  // This message is heard only while Python waits: for the device, or in an await.
  postMessage({ type: "stopping" });
  if (pausing) interrupted[0] = 2;
  else session.stop();
}

async function get(name) {
  const answer = await fetch(new URL(name, import.meta.url));
  if (!answer.ok) throw new Error(`${name}: the server answers ${answer.status}`);
  return answer.arrayBuffer();
}

async function start({ wheel, bytecode, files, interrupt, packages: here = [] }) {
  packages = here;
  const began = performance.now();
  const step = (text) => postMessage({ type: "status", text });
  step("Loading Python …");
  const fetched = get(wheel);
  const compiled = bytecode && get(bytecode);
  const data = Promise.all(files.map(async (name) => [name, await get(`data/${name}`)]));
  const env = { WEBTORCH_DEVICE: "webgpu", WEBTORCH_CACHE: "0", HOME: "/home/pyodide" };
  python = await loadPyodide({ env, packages: [], checkIntegrity: false });
  const loaded = performance.now();
  step("Loading webtorch …");
  python.registerJsModule("webtorch_browser", { adapter: browser.adapter, describe: browser.describe, open: browser.open });
  python.registerJsModule("webtorch_page", { write, show, pause });
  const home = python.runPython("import site; site.getsitepackages()[0]");
  python.unpackArchive(await fetched, "wheel", { extractDir: home });
  if (compiled) python.unpackArchive(await compiled, "zip", { extractDir: home });
  for (const [name, bytes] of await data) python.FS.writeFile(`/home/pyodide/${name}`, new Uint8Array(bytes));
  if (interrupt) interrupted = interrupt;
  python.setInterruptBuffer(interrupted);
  const unpacked = performance.now();
  session = python.pyimport("webtorch.web.playground.session");
  const imported = performance.now();
  step("Opening the graphics device …");
  const about = JSON.parse(await session.open_device());
  const now = performance.now();
  const seconds = { python: loaded - began, unpack: unpacked - loaded, webtorch: imported - unpacked, device: now - imported, all: now - began };
  postMessage({ type: "ready", ...about, seconds });
}

async function run({ code }) {
  interrupted[0] = 0;
  // runPythonAsync is an entry from which Python may pause (JSPI).
  const began = performance.now();
  const wanted = packages.filter((name) => new RegExp(`^\\s*(import|from)\\s+${name}\\b`, "m").test(code));
  if (wanted.length) await python.loadPackage(wanted, { messageCallback: () => {}, checkIntegrity: false });
  packages = packages.filter((name) => !wanted.includes(name));
  python.globals.set("_webtorch_cell", code);
  const entry = "from webtorch.web.playground import session as _s\nawait _s.run(_webtorch_cell)";
  const result = JSON.parse(await python.runPythonAsync(entry));
  flush();
  postMessage({ type: "done", ...result, milliseconds: performance.now() - began });
}

onmessage = async ({ data }) => {
  try {
    if (data.type === "start") await start(data);
    else if (data.type === "run") await run(data);
    else if (data.type === "stop") stop();
    else if (data.type === "reset") session.reset();
  } catch (error) {
    flush();
    postMessage({ type: "failed", during: data.type, text: String(error?.message ?? error) });
  }
};
// A pause of Python lets timers run: what has been printed by then is shown.
setInterval(flush, 50);
