// Run buttons of the documentation's programs: Python, webtorch and the tab's graphics device, by the worker of the
// playground that lies beside these pages. A program of a page goes on from those before it.

const playground = new URL("../playground/", import.meta.url);
const marks = document.getElementById("runs-here");
// The page's programs in their order: those that ran already in this worker are not run again.
const blocks = [];
let worker = null;
let opened = null;
let current = null;

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
  const block = { code: `${marks.dataset.first ?? ""}${first}\n${code}`, done: false };
  const bar = element("div", "run-bar");
  const button = element("button", "md-button run", "Run");
  const open = Object.assign(element("a", "run-open", "Open in the playground"), { href: new URL("index.html", playground).href });
  block.status = element("span", "run-status");
  block.status.setAttribute("role", "status");
  block.output = element("div", "run-output");
  block.output.hidden = true;
  bar.append(button, block.status, open);
  box.after(bar, block.output);
  blocks.push(block);
  button.onclick = () => run(block, button);
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
  last.textContent = text.includes("\r") ? whole.replace(/\r\n/g, "\n").replace(/[^\n]*\r(?!\n)/g, "") : whole;
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
  return new Promise((resolve, reject) => {
    const receive = {
      status: ({ text }) => (current.status.textContent = text),
      ready: resolve,
      text: ({ parts }) => parts.forEach(([kind, text]) => print(kind, text)),
      picture,
      failed: ({ text }) => {
        reject(new Error(text));
        current.finish?.({ ok: false, error: text });
      },
      done: (result) => current.finish(result),
    };
    worker.onmessage = ({ data }) => receive[data.type]?.(data);
    worker.onerror = () => reject(new Error("the worker's script could not be loaded"));
    worker.postMessage({ type: "start", wheel: site.wheel, bytecode: site.bytecode, files: site.data, interrupt: null });
  });
}

async function run(block, button) {
  const buttons = [...document.querySelectorAll("button.run")];
  for (const one of buttons) one.disabled = true;
  const before = blocks.slice(0, blocks.indexOf(block)).filter((one) => !one.done);
  try {
    current = block;
    block.output.replaceChildren();
    block.output.hidden = false;
    const about = await (opened ??= start());
    for (const one of [...before, block]) {
      current = one;
      one.output.replaceChildren();
      one.output.hidden = false;
      one.status.textContent = "Running …";
      const result = await new Promise((resolve) => {
        one.finish = resolve;
        worker.postMessage({ type: "run", code: one.code });
      });
      if (result.error) print("error", result.error);
      one.status.textContent = result.ok ? `${(result.milliseconds / 1000).toFixed(2)} s, ${about.device || "on the CPU in plain Python"}` : "failed";
      one.output.hidden = !one.output.childElementCount;
      if (!result.ok) break;
      one.done = true;
    }
  } catch (error) {
    block.status.textContent = `Python could not be started: ${error.message}`;
    opened = null;
    worker?.terminate();
  } finally {
    for (const one of buttons) one.disabled = false;
    button.focus({ preventScroll: true });
  }
}

if (marks) document.querySelectorAll(".language-python").forEach(prepare);
