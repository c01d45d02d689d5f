/** The page of a language model: shows the conversation; everything else is in worker.js. */

const $ = (id) => document.getElementById(id);
const device = new URLSearchParams(location.search).get("device") ?? "auto";
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const post = (op, more = {}) => worker.postMessage({ op, device, ...more });
let messages = [];
// The answer that is coming, and the conversation that it belongs to.
let answer = null;
let asked = messages;
let ready = false;
// What the page says while nothing is wrong.
let standing = ["", false];

function show(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function bubble(role, text) {
  const item = document.createElement("li");
  item.className = role;
  item.textContent = text;
  $("talk").append(item);
  scrollTo(0, document.body.scrollHeight);
  return item;
}

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  answer?.classList.toggle("busy", on);
}

function send() {
  const text = $("text").value.trim();
  if (!text || answer) return;
  $("text").value = "";
  show(...standing);
  asked = messages;
  asked.push({ role: "user", content: text });
  bubble("user", text);
  answer = bubble("assistant", "");
  busy(true);
  post("ask", { messages, told: $("told").value.trim(), temperature: Number($("temperature").value) });
}

/** The answer is whole: it belongs to the conversation. */
function finish() {
  asked.push({ role: "assistant", content: answer.textContent });
  busy(false);
  answer = null;
}

worker.onmessage = ({ data }) => {
  if (data.progress !== undefined) {
    $("progress").hidden = data.progress === null;
    $("progress").value = data.progress ?? 0;
    show(data.text);
  }
  if (data.wants) {
    const { name, size, url } = data.wants;
    $("file").hidden = false;
    $("fetch").hidden = !url;
    $("wanted").textContent = `This page runs ${name} (${size < 1e6 ? `${Math.ceil(size / 1e3)} kB` : `${(size / 1e6).toFixed(size < 1e8 ? 1 : 0)} MB`}).`;
    show("The model is not here yet.");
  }
  if (data.ready) {
    ready = true;
    $("progress").hidden = $("file").hidden = true;
    $("form").hidden = $("forget").hidden = false;
    $("first").hidden = !data.told;
    const where = `On ${data.device}${data.reason ? `, as ${data.reason}` : ""}.`;
    standing = data.right ? [where, false]
      : [`${where} Its first tokens are not those of the processor where this page was made: answers may be wrong.`, true];
    show(...standing);
    $("text").focus();
  }
  if (data.piece !== undefined && answer) {
    const low = innerHeight + scrollY > document.body.scrollHeight - 160;
    answer.append(data.piece);
    if (low) scrollTo(0, document.body.scrollHeight);
  }
  if (data.done) {
    const said = data.tokens === 1 ? "1 token" : `${data.tokens} tokens`;
    // Of a few tokens it means nothing.
    $("speed").textContent = data.tokens < 8 ? said : `${said}, ${data.speed.toFixed(1)} a second`;
    finish();
  }
  if (data.forgotten) show("The file is not kept any more; this conversation can go on.");
  if (data.error) {
    show(data.error, true);
    $("progress").hidden = true;
    if (answer) {
      // What failed was not said: it can be changed, and said again.
      const { content } = asked.pop();
      $("text").value ||= content;
      busy(false);
      answer.previousElementSibling.remove();
      answer.remove();
      answer = null;
    } else if (!ready) $("file").hidden = false;
  }
};
worker.onerror = (event) => show(`The model stopped: ${event.message || "worker.js could not be started"}`, true);

$("form").onsubmit = (event) => {
  event.preventDefault();
  send();
};
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
};
$("stop").onclick = () => post("stop");
$("new").onclick = () => {
  post("stop");
  messages = [];
  $("talk").replaceChildren();
};
$("forget").onclick = () => post("forget");
$("fetch").onclick = () => {
  $("file").hidden = true;
  post("fetch");
};

function take(file) {
  if (!file || ready) return;
  $("file").hidden = true;
  post("take", { file });
}
$("choose").onchange = () => take($("choose").files[0]);
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", () => document.body.classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  take(event.dataTransfer.files[0]);
});
post("begin");
