/**
 * Owns a language model in a page that webtorch.llm.export wrote: keeps its file in the origin's private file system, reads weights
 * from it as they lie there, and answers. Messages: open, ask, stop, forget; see chat.js.
 */
import { isSoftware, open, openCpu, readSafetensors, requestDevice } from "./runtime.js";
import { tokenizerOf } from "./tokens.js";

const say = (message) => globalThis.postMessage(message);
const json = async (name) => {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: the server answered ${response.status}`);
  return response.json();
};
const bytes = async (name) => (await fetch(new URL(name, import.meta.url))).arrayBuffer();
/** Let messages that have come be taken. */
const turn = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => (port1.close(), resolve());
  port2.postMessage(0);
});

// --- the file ---------------------------------------------------------------------------------------------------------

async function folder() {
  try {
    return await navigator.storage.getDirectory();
  } catch {
    // A browser in private mode, or a page without https.
    return null;
  }
}

/** Return the kept file, or null; what is not whole is not returned. */
async function kept({ name, size }) {
  try {
    const file = await (await (await folder()).getFileHandle(name)).getFile();
    return file.size === size ? file : null;
  } catch {
    return null;
  }
}

async function forget({ name }) {
  const place = await folder();
  for (const file of [name, `${name}.part`]) await place?.removeEntry(file).catch(() => {});
}

/** Refuse a file that is not the one that was exported. */
async function checked(file, { name, size, head, digest }) {
  if (file.size !== size) throw new Error(`${file.name ?? name}: it has ${file.size} bytes, and ${name} has ${size}: this page was made for that file.`);
  if (globalThis.crypto?.subtle) {
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await file.slice(0, head).arrayBuffer()));
    if (Array.from(hash, (b) => b.toString(16).padStart(2, "0")).join("") !== digest) throw new Error(`${file.name ?? name}: it is another model than ${name}, for which this page was made.`);
  }
  return file;
}

/** Write a stream behind what is there already; `write` is given how many bytes there were. */
async function fill(access, stream, at, size) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    access.write(value, { at });
    at += value.length;
    say({ progress: at / size, text: `Fetching the model: ${(at / 1e6).toFixed(0)} of ${(size / 1e6).toFixed(0)} MB` });
  }
  access.flush();
}

/** Keep a file under its name, from a stream of what follows the bytes that are there; return the kept one. */
async function keep(place, { name, size }, streamOf) {
  const part = `${name}.part`;
  const handle = await place.getFileHandle(part, { create: true });
  const access = await handle.createSyncAccessHandle();
  try {
    let have = access.getSize();
    if (have > size) access.truncate((have = 0));
    if (have < size) {
      const { stream, at } = await streamOf(have);
      if (at < have) access.truncate(at);
      await fill(access, stream, at, size);
    }
  } finally {
    access.close();
  }
  if (handle.move) await handle.move(name);
  else {
    // Browsers without `move` copy.
    const target = await (await place.getFileHandle(name, { create: true })).createSyncAccessHandle();
    await fill(target, (await handle.getFile()).stream(), 0, size);
    target.close();
    await place.removeEntry(part);
  }
  return (await place.getFileHandle(name)).getFile();
}

/** Fetch the file, what is missing of it by a range. */
async function fetched(about) {
  const streamOf = async (have) => {
    const response = await fetch(new URL(about.url, import.meta.url), { headers: have ? { Range: `bytes=${have}-` } : {} });
    if (!response.ok) throw new Error(`${about.url}: the server answered ${response.status} ${response.statusText}`);
    return { stream: response.body, at: response.status === 206 ? have : 0 };
  };
  const place = await folder();
  if (!place) return checked(await (await fetch(new URL(about.url, import.meta.url))).blob(), about);
  try {
    return await checked(await keep(place, about, streamOf), about);
  } catch (error) {
    if (!(error instanceof TypeError)) await forget(about);
    throw error;
  }
}

// --- weights ----------------------------------------------------------------------------------------------------------

/** Return rows whose neighbours are pairs, half by half, as webtorch.llm has queries and keys. */
function unpaired(given, rows, heads) {
  const out = new Uint8Array(given.length);
  const length = given.length / rows;
  const half = rows / heads / 2;
  for (let head = 0; head < heads; head++) for (let side = 0; side < 2; side++) for (let i = 0; i < half; i++) {
    const from = ((head * half + i) * 2 + side) * length;
    out.set(given.subarray(from, from + length), ((head * 2 + side) * half + i) * length);
  }
  return out;
}

/** Return the tensors of a program's states, each read from the file when it is asked for. */
function weightsOf(file, { weights, zeros }, own, states) {
  const reader = new FileReaderSync();
  const shapes = new Map(states.map((state) => [state.name, state]));
  let done = 0;
  const read = (name) => {
    const { dtype, shape } = shapes.get(name);
    if (zeros.includes(name)) return { dtype, shape, bytes: new Uint8Array(shape.reduce((a, b) => a * b, 1) * 4) };
    const { begin, end, type, rows, heads } = weights[name];
    let found = new Uint8Array(reader.readAsArrayBuffer(file.slice(begin, end)));
    if (heads) found = unpaired(found, rows, heads);
    if (dtype !== "int32") return { dtype: type, shape, bytes: found };
    const words = new Uint8Array(4 * shape[0]);
    words.set(found);
    return { dtype, shape, bytes: words };
  };
  return new Proxy(own, {
    get(target, name) {
      say({ progress: ++done / states.length, text: "Reading the weights" });
      return target[name] ?? read(name);
    },
  });
}

// --- the model --------------------------------------------------------------------------------------------------------

class Chat {
  constructor(about, tokenizer) {
    Object.assign(this, { about, tokenizer, tokens: [], stopped: false });
  }

  /** Open the program on the device that is there: a graphics card, else the processor. */
  async open(file, wanted) {
    const { about } = this;
    const [program, own] = [await json("program.json"), readSafetensors(await bytes("state.safetensors"), "state.safetensors")];
    const onProcessor = async (reason) => {
      const files = { code: await bytes("cpu.wasm"), constants: await bytes("cpu.bin") };
      const options = { library: await import("./cpu.js"), script: new URL("cpu.js", import.meta.url).href };
      this.engine = await openCpu(program, weightsOf(file, about, own, program.states), files, options);
      return reason;
    };
    const hasCpu = typeof program.cpu === "object";
    if (wanted === "cpu") return onProcessor("");
    let device = null;
    let software = program;
    try {
      device = await requestDevice(program);
      if (isSoftware({ info: device.adapterInfo ?? {} })) {
        if (wanted !== "webgpu" && hasCpu) {
          device.destroy();
          return await onProcessor("there is no graphics card");
        }
        software = { ...program, ...(await json("software.json")) };
        device.destroy();
        device = await requestDevice(software);
      }
    } catch (error) {
      if (wanted === "webgpu" || !hasCpu) throw error;
      return onProcessor(error.message);
    }
    this.engine = await open(software, weightsOf(file, about, own, program.states), { device });
    return "";
  }

  async step(kind, tokens, places, wanted) {
    const last = places[places.length - 1] + 1;
    const length = this.about.lengths.find((n) => n >= last);
    const { logits } = await this.engine.functions[`${kind}${length}`].call({ tokens, at: places, wanted: [wanted] });
    return logits.data;
  }

  /** Read what the cache does not have of a prompt; return the logits after it. */
  async read(prompt) {
    const { piece, context, rewinds } = this.about;
    let at = 0;
    while (at < prompt.length - 1 && this.tokens[at] === prompt[at]) at++;
    // A piece may write over what is there already.
    if (rewinds !== null && this.tokens.length - at > rewinds - piece) at = 0;
    this.tokens.length = at;
    let logits = null;
    while (at < prompt.length) {
      const one = prompt.length - at === 1;
      const width = one ? 1 : piece;
      const begin = Math.min(at, context - width);
      const given = prompt.slice(begin, begin + width);
      const places = Array.from({ length: width }, (_, i) => begin + i);
      logits = await this.step(one ? "token" : "read", [...given, ...new Array(width - given.length).fill(0)], places, given.length - 1);
      at = begin + given.length;
      this.tokens = prompt.slice(0, at);
      await turn();
      if (this.stopped) break;
    }
    return logits;
  }

  /** Call `take` with each token that follows a prompt, until one of the ends, a stop, or the end of the context. */
  async generate(prompt, most, sampling, take) {
    const { context, ends } = this.about;
    if (prompt.length >= context) throw new Error(`The conversation has ${prompt.length} tokens, and there is room for ${context}: press New, or write less.`);
    this.stopped = false;
    let logits = await this.read(prompt);
    for (let made = 0; made < most && !this.stopped; made++) {
      const token = choose(logits, sampling);
      if (ends.includes(token)) return "stop";
      take(token);
      const place = prompt.length + made;
      if (place >= context) return "length";
      logits = await this.step("token", [token], [place], 0);
      this.tokens.push(token);
      await turn();
    }
    return this.stopped ? "stopped" : "length";
  }

  /** Return the tokens of a conversation, as the file's chat template writes it. */
  prompt(messages, told) {
    const { system, first, between, again, last, begins } = this.about.chat;
    let text = told && system ? system[0] + told + system[1] : first;
    messages.forEach(({ role, content }, i) => {
      if (i) text += role === "user" ? again : between;
      text += content;
    });
    return this.tokenizer.encode(text + last, begins);
  }

  /** Compare the first tokens with those that the model gave on the processor where it was exported. */
  async check() {
    const { prompt, answer } = this.about.check;
    const found = [];
    await this.generate(prompt, answer.length, { temperature: 0 }, (token) => found.push(token));
    return answer.every((token, i) => found[i] === token);
  }
}

/** Draw a token: the likeliest 40, of these the likeliest that make 95 %. */
function choose(logits, { temperature, most = 40, part = 0.95 }) {
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  if (!(temperature > 0)) return best;
  const top = [];
  let least = -Infinity;
  for (let i = 0; i < logits.length; i++) {
    if (logits[i] <= least) continue;
    top.push(i);
    if (top.length < 2 * most) continue;
    top.sort((a, b) => logits[b] - logits[a]);
    top.length = most;
    least = logits[top[most - 1]];
  }
  top.sort((a, b) => logits[b] - logits[a]);
  top.length = Math.min(top.length, most);
  const weights = top.map((i) => Math.exp((logits[i] - logits[best]) / temperature));
  const total = weights.reduce((a, b) => a + b, 0);
  let count = 0;
  for (let sum = 0; count < weights.length && sum < part * total; count++) sum += weights[count];
  let left = Math.random() * weights.slice(0, count).reduce((a, b) => a + b, 0);
  for (let i = 0; i < count; i++) if ((left -= weights[i]) <= 0) return top[i];
  return top[0];
}

// --- messages ---------------------------------------------------------------------------------------------------------

let chat = null;
const about = json("model.json");

async function opened(file, wanted) {
  chat = new Chat(await about, tokenizerOf(await json("tokenizer.json")));
  const reason = await chat.open(file, wanted);
  say({ progress: null, text: "Trying the first tokens" });
  const right = await chat.check();
  say({ ready: true, right, told: Boolean(chat.about.chat.system), device: chat.engine.deviceName, reason });
}

const actions = {
  /** What is known at the beginning: whether the file is here. */
  async begin({ device }) {
    const found = await about;
    const file = await kept(found.file);
    if (!file) say({ wants: found.file });
    else await opened(await checked(file, found.file), device);
  },
  async fetch({ device }) {
    await opened(await fetched((await about).file), device);
  },
  async take({ file, device }) {
    const { file: told } = await about;
    await checked(file, told);
    const place = await folder();
    let held = file;
    try {
      if (place) held = await keep(place, told, async () => ({ stream: file.stream(), at: 0 }));
    } catch {
      // There is no room for it: it is read where it lies.
      await forget(told);
    }
    await opened(held, device);
  },
  async ask({ messages, told, temperature, most }) {
    const decoder = new TextDecoder();
    const began = { at: 0, count: 0 };
    let strips = chat.tokenizer.strips;
    const finish = await chat.generate(chat.prompt(messages, told), most ?? Infinity, { temperature }, (token) => {
      began.at ||= performance.now();
      began.count += 1;
      const piece = decoder.decode(chat.tokenizer.bytes(token), { stream: true });
      say({ piece: strips ? piece.replace(/^ /, "") : piece });
      strips &&= !piece;
    });
    const seconds = (performance.now() - began.at) / 1000;
    say({ piece: decoder.decode(), done: finish, tokens: began.count, speed: began.count > 1 ? (began.count - 1) / seconds : 0 });
  },
  async stop() {
    if (chat) chat.stopped = true;
  },
  async forget() {
    await forget((await about).file);
    say({ forgotten: true });
  },
};

globalThis.onmessage = async ({ data }) => {
  try {
    await actions[data.op](data);
  } catch (error) {
    say({ error: error.message });
  }
};
