/**
 * webtorch runtime: runs a program that webtorch exported, on WebGPU. One file, no dependencies, no eval.
 *
 *   import { load } from "./runtime.js";
 *   const m = await load("./");
 *   const { out } = await m.step({ x, y });     // {data, shape, dtype}
 *   m.set("lr", 1e-3);
 *
 * Parameters and optimizer state stay on the device. A call encodes everything into one submission; what it returns is read
 * back in the same submission, and `m.step(inputs, { read: false })` reads nothing. Calls may overlap: they run in the order in
 * which they were made.
 */

const FORMAT = "webtorch program";
const VERSION = 1;
// Sets of memory for which a function keeps its bind groups: buffers that are exchanged at each call alternate between two.
const PLANS = 16;

/** What went wrong, in words for the page's user. */
export class WebtorchError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "WebtorchError";
  }
}

// --- element types ----------------------------------------------------------------------------------------------------

const scratch = new DataView(new ArrayBuffer(4));

function halfToFloat(h) {
  const sign = h & 0x8000 ? -1 : 1;
  const exponent = (h >> 10) & 31;
  const fraction = h & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function floatToHalf(x) {
  scratch.setFloat32(0, x);
  const bits = scratch.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const a = bits & 0x7fffffff;
  if (a > 0x7f800000) return sign | 0x7e00;
  if (a >= 0x47800000) return sign | 0x7c00;
  // Subnormal halves are multiples of 2 ** -24; round to nearest, ties to even, as everywhere.
  if (a < 0x38800000) return sign | roundEven(Math.abs(Math.fround(x)) * 2 ** 24);
  return sign | ((a - 0x38000000 + 0xfff + ((a >>> 13) & 1)) >>> 13);
}

function roundEven(x) {
  const floor = Math.floor(x);
  const rest = x - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}

function brainToFloat(h) {
  scratch.setUint32(0, h << 16);
  return scratch.getFloat32(0);
}

function floatToBrain(x) {
  if (Number.isNaN(x)) return 0x7fc0;
  scratch.setFloat32(0, x);
  const bits = scratch.getUint32(0);
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** `stored` is the array of device memory, `view` what a page gets and may give, `file` the bytes in a safetensors file. */
const TYPES = {
  float32: { code: "F32", file: 4, stored: Float32Array, view: Float32Array },
  float16: { code: "F16", file: 2, stored: Uint16Array, view: Float32Array, encode: floatToHalf, decode: halfToFloat },
  bfloat16: { code: "BF16", file: 2, stored: Uint16Array, view: Float32Array, encode: floatToBrain, decode: brainToFloat },
  // WebGPU has no 64-bit integers: the values are checked on the way in.
  int64: { code: "I64", file: 8, stored: Int32Array, view: Int32Array, low: -(2 ** 31), high: 2 ** 31 - 1 },
  int32: { code: "I32", file: 4, stored: Int32Array, view: Int32Array, low: -(2 ** 31), high: 2 ** 31 - 1 },
  int8: { code: "I8", file: 1, stored: Int8Array, view: Int8Array, low: -128, high: 127 },
  uint8: { code: "U8", file: 1, stored: Uint8Array, view: Uint8Array, low: 0, high: 255 },
  uint32: { code: "U32", file: 4, stored: Uint32Array, view: Uint32Array, low: 0, high: 2 ** 32 - 1 },
  bool: { code: "BOOL", file: 1, stored: Uint8Array, view: Uint8Array, encode: (v) => (v ? 1 : 0) },
};

const elementsOf = (shape) => shape.reduce((n, size) => n * size, 1);
const words = (bytes) => (bytes + 3) & ~3;
const shown = (shape) => `[${shape.join(", ")}]`;

function typeOf(dtype, what) {
  const type = TYPES[dtype];
  if (!type) throw new WebtorchError(`${what}: this runtime does not know the type ${dtype}`);
  return type;
}

/** Return the shape of nested arrays, following the first element of each. */
function shapeOf(value) {
  const shape = [];
  while (Array.isArray(value) || ArrayBuffer.isView(value)) {
    shape.push(value.length);
    value = value[0];
  }
  return shape;
}

function* numbersOf(value, shape, depth, what) {
  if (depth === shape.length) {
    yield value;
    return;
  }
  if (value == null || value.length !== shape[depth]) {
    throw new WebtorchError(`${what}: the nested arrays do not have one shape: expected ${shape[depth]} entries, found ${value?.length}`);
  }
  for (const item of value) yield* numbersOf(item, shape, depth + 1, what);
}

/**
 * Return `value` as the bytes of device memory, whole words. A typed array or flat array of the right length is taken as it
 * is; nested arrays must have the shape; `{data, shape}`, as calls return it, is checked too.
 */
function encode(value, shape, dtype, what) {
  const type = typeOf(dtype, what);
  const count = elementsOf(shape);
  if (value === undefined || value === null) throw new WebtorchError(`${what}: no value was given; it is ${dtype}${shown(shape)}`);
  let given = null;
  if (typeof value === "object" && "data" in value && !ArrayBuffer.isView(value)) {
    given = value.shape ?? null;
    value = value.data;
  }
  let source = value;
  if (ArrayBuffer.isView(value)) {
    if (value.length !== count) given ??= [value.length];
  } else if (Array.isArray(value)) {
    const nested = shapeOf(value);
    if (nested.length > 1 || shape.length === 1) given ??= nested;
    else if (value.length !== count) given ??= nested;
    source = [...numbersOf(value, nested, 0, what)];
  } else {
    given ??= [];
    source = [value];
  }
  if (given && (given.length !== shape.length || given.some((n, d) => n !== shape[d])) && !(count === 1 && elementsOf(given) === 1)) {
    throw new WebtorchError(`${what}: expected shape ${shown(shape)}, got ${shown(given)}`);
  }
  const bytes = new ArrayBuffer(words(count * type.stored.BYTES_PER_ELEMENT));
  const out = new type.stored(bytes, 0, count);
  if (type.low !== undefined) {
    for (let i = 0; i < count; i++) {
      const number = Number(source[i]);
      if (!(number >= type.low && number <= type.high) || !Number.isInteger(number)) {
        const why = dtype === "int64" ? " (held in 32 bits on WebGPU)" : "";
        throw new WebtorchError(`${what}: element ${i} is ${source[i]}, which does not fit ${dtype}${why}`);
      }
      out[i] = number;
    }
  } else if (type.encode) {
    for (let i = 0; i < count; i++) out[i] = type.encode(Number(source[i]));
  } else if (source instanceof type.stored) {
    out.set(source);
  } else {
    for (let i = 0; i < count; i++) {
      const number = Number(source[i]);
      if (Number.isNaN(number) && !Number.isNaN(source[i])) throw new WebtorchError(`${what}: element ${i} is ${source[i]}, not a number`);
      out[i] = number;
    }
  }
  return bytes;
}

/** Return the elements that a strided view of stored bytes shows, in row-major order. */
function decode(bytes, at, { dtype, shape, strides, offset }) {
  const type = typeOf(dtype, "output");
  const stored = new type.stored(bytes, at);
  const count = elementsOf(shape);
  const out = new type.view(count);
  const place = new Array(shape.length).fill(0);
  let from = offset;
  for (let i = 0; i < count; i++) {
    out[i] = type.decode ? type.decode(stored[from]) : stored[from];
    for (let d = shape.length - 1; d >= 0; d--) {
      from += strides[d];
      if (++place[d] < shape[d]) break;
      from -= strides[d] * shape[d];
      place[d] = 0;
    }
  }
  return out;
}

const contiguous = (shape) => {
  const strides = new Array(shape.length);
  let step = 1;
  for (let d = shape.length - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
};

// --- safetensors ------------------------------------------------------------------------------------------------------

/** Return {name: {dtype, shape, bytes}} of a safetensors file (an ArrayBuffer). Throws WebtorchError if it is damaged. */
export function readSafetensors(file, what = "weights") {
  const damaged = (why) => new WebtorchError(`${what}: the file is damaged or incomplete: ${why}`);
  if (file.byteLength < 8) throw damaged(`it has ${file.byteLength} bytes`);
  const length = Number(new DataView(file).getBigUint64(0, true));
  if (length > file.byteLength - 8) throw damaged(`its header would take ${length} of ${file.byteLength} bytes`);
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(file, 8, length)));
  } catch (error) {
    throw damaged(`its header is not JSON (${error.message})`);
  }
  const names = Object.fromEntries(Object.entries(TYPES).map(([name, type]) => [type.code, name]));
  const out = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const dtype = names[entry?.dtype];
    const [begin, end] = entry?.data_offsets ?? [];
    if (!dtype || !Array.isArray(entry.shape) || !Number.isInteger(begin) || !Number.isInteger(end)) throw damaged(`the entry of ${name} is not valid`);
    const nbytes = elementsOf(entry.shape) * TYPES[dtype].file;
    if (begin < 0 || end - begin !== nbytes || 8 + length + end > file.byteLength) {
      throw damaged(`${name} should have ${nbytes} bytes at ${begin}, the file ends at ${file.byteLength - 8 - length}`);
    }
    out[name] = { dtype, shape: entry.shape, bytes: new Uint8Array(file, 8 + length + begin, nbytes) };
  }
  return out;
}

/** Return a safetensors file (Uint8Array) of {name: {dtype, shape, bytes}}. */
export function writeSafetensors(tensors) {
  // Larger element types first, so that every tensor is aligned.
  const order = Object.keys(tensors).sort((a, b) => TYPES[tensors[b].dtype].file - TYPES[tensors[a].dtype].file);
  const header = {};
  let position = 0;
  for (const name of order) {
    const { dtype, shape, bytes } = tensors[name];
    header[name] = { dtype: TYPES[dtype].code, shape, data_offsets: [position, position + bytes.length] };
    position += bytes.length;
  }
  let text = new TextEncoder().encode(JSON.stringify(header));
  const length = (text.length + 7) & ~7;
  const file = new Uint8Array(8 + length + position);
  new DataView(file.buffer).setBigUint64(0, BigInt(length), true);
  file.fill(32, 8, 8 + length);
  file.set(text, 8);
  for (const name of order) file.set(tensors[name].bytes, 8 + length + header[name].data_offsets[0]);
  return file;
}

/** Return the bytes of a file's tensor as device memory holds them. */
function toDevice({ dtype, bytes }, what) {
  const out = new Uint8Array(words(dtype === "int64" ? bytes.length / 2 : bytes.length));
  if (dtype !== "int64") {
    out.set(bytes);
    return out;
  }
  const wide = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const narrow = new Int32Array(out.buffer);
  for (let i = 0; i < narrow.length; i++) {
    const value = wide.getBigInt64(8 * i, true);
    if (BigInt.asIntN(32, value) !== value) throw new WebtorchError(`${what}: element ${i} is ${value}, beyond the 32 bits that integers have on WebGPU`);
    narrow[i] = Number(value);
  }
  return out;
}

/** The reverse: the bytes of a file's tensor from those of device memory. */
function toFile(bytes, dtype, count) {
  if (dtype !== "int64") return bytes.slice(0, count * TYPES[dtype].file);
  const narrow = new Int32Array(bytes.buffer, bytes.byteOffset, count);
  const wide = new BigInt64Array(count);
  for (let i = 0; i < count; i++) wide[i] = BigInt(narrow[i]);
  return new Uint8Array(wide.buffer);
}

// --- the device -------------------------------------------------------------------------------------------------------

/** Return a GPUDevice with the limits and features that a program needs. Throws WebtorchError, saying what is missing. */
export async function requestDevice({ limits = {}, features = [] } = {}) {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) {
    const why = globalThis.isSecureContext === false ? "this page is not served over https or from localhost" : "this browser does not offer it, or it is switched off";
    throw new WebtorchError(`WebGPU is not available: ${why}. Current versions of Chrome, Edge, Safari and Firefox have it.`);
  }
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new WebtorchError("WebGPU is present, but the browser offers no graphics device: the driver may be blocked or missing.");
  const missing = [];
  for (const [name, needed] of Object.entries(limits)) {
    const offered = adapter.limits[name];
    if (offered === undefined || offered < needed) missing.push(`${name}: ${needed} is needed, this device offers ${offered ?? "none"}`);
  }
  for (const name of features) if (!adapter.features.has(name)) missing.push(`feature ${name}: this device does not have it`);
  if (missing.length) throw new WebtorchError(`This device is too small for the program. ${missing.join("; ")}.`);
  const device = await adapter.requestDevice({ requiredLimits: limits, requiredFeatures: features });
  device.webtorchName = nameOf(adapter.info ?? device.adapterInfo ?? {});
  return device;
}

function nameOf(info) {
  const text = info.description || [info.vendor, info.architecture].filter(Boolean).join(" ");
  return text || "WebGPU device";
}

function excerpt(code, line) {
  const lines = code.split("\n");
  const first = Math.max(1, line - 3);
  const numbered = lines.slice(first - 1, line + 2).map((text, i) => `${first + i === line ? ">" : " "}${String(first + i).padStart(5)} | ${text}`);
  return numbered.join("\n");
}

// Kernels and layouts by device: several exports of one model, opened on one device, are compiled once.
const compiled = new WeakMap();

/** Return the pipeline of a kernel, compiled once for each device. */
function kernelOf(device, kernel) {
  let cache = compiled.get(device);
  if (!cache) compiled.set(device, (cache = { kernels: new Map(), layouts: new Map() }));
  const key = `${kernel.bindings.join()}\n${kernel.code}`;
  let found = cache.kernels.get(key);
  if (!found) cache.kernels.set(key, (found = compileKernel(device, kernel, cache.layouts)));
  return found;
}

/** Compile a kernel. Throws WebtorchError with the line that the compiler refused. */
async function compileKernel(device, kernel, layouts) {
  const key = kernel.bindings.join();
  let layout = layouts.get(key);
  if (!layout) {
    const types = { read: "read-only-storage", read_write: "storage", uniform: "uniform" };
    const entries = kernel.bindings.map((kind, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: types[kind] } }));
    const group = device.createBindGroupLayout({ entries });
    layout = { group, pipeline: device.createPipelineLayout({ bindGroupLayouts: [group] }) };
    layouts.set(key, layout);
  }
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code: kernel.code, label: kernel.name });
  const refused = device.popErrorScope();
  let failure = null;
  let pipeline = null;
  try {
    pipeline = await device.createComputePipelineAsync({ label: kernel.name, layout: layout.pipeline, compute: { module, entryPoint: kernel.entry } });
  } catch (error) {
    failure = error;
  }
  const problem = (await refused) ?? failure;
  if (problem) {
    const { messages } = await module.getCompilationInfo();
    const first = messages.find((m) => m.type === "error");
    const where = first ? `line ${first.lineNum}:${first.linePos}: ${first.message}\n${excerpt(kernel.code, first.lineNum)}` : problem.message;
    throw new WebtorchError(`kernel ${kernel.name}: the browser's compiler refused it: ${where}`, { cause: problem });
  }
  return { pipeline, group: layout.group };
}

// --- programs ---------------------------------------------------------------------------------------------------------

/** One exported function, ready to be called. */
class Program {
  constructor(model, name, description) {
    this.model = model;
    this.name = name;
    this.description = description;
    this.plans = new Map();
    this.packed = null;
    this.own = new Map();
    this.arguments = [];
    this.staging = [];
  }

  allocate() {
    const { device } = this.model;
    const { GPUBufferUsage: usage } = globalThis;
    const all = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST;
    const { memory, uniform, status } = this.description;
    memory.forEach((place, entry) => {
      if (place.own !== undefined) this.own.set(entry, device.createBuffer({ size: place.own, usage: all }));
      else if (place.argument !== undefined) this.arguments[place.argument] = device.createBuffer({ size: place.bytes, usage: all });
    });
    if (uniform.bytes) {
      this.uniform = device.createBuffer({ size: uniform.bytes, usage: usage.UNIFORM | usage.COPY_DST });
      this.packed = new Uint8Array(uniform.bytes);
      this.fresh = true;
    }
    if (status) this.status = device.createBuffer({ size: 16, usage: all });
  }

  buffer(entry) {
    const place = this.description.memory[entry];
    if (place.state !== undefined) return this.model.states[place.state].buffer;
    if (place.argument !== undefined) return this.arguments[place.argument];
    return this.own.get(entry);
  }

  /** Write the runtime arguments into the uniform buffer, if any of them changed. */
  packArguments(inputs) {
    const { args, uniform, numbers } = this.description;
    if (!this.uniform) return;
    const { model } = this;
    const local = {};
    for (const { name, value } of numbers) local[name] = Number(inputs[name] ?? value);
    const values = args.map((arg) => {
      if (arg.random) return Number(((model.random + BigInt(arg.random[0])) >> BigInt(32 * arg.random[1])) & 0xffffffffn);
      if (!arg.terms) return Number(arg.value);
      let sum = 0;
      for (const [coefficient, names] of arg.terms) {
        let product = Number(coefficient);
        for (const name of names) product *= local[name] ?? model.settings[name];
        sum += product;
      }
      return sum;
    });
    const view = new DataView(new ArrayBuffer(uniform.bytes));
    for (const [offset, number] of uniform.fields) {
      const value = values[number];
      if (args[number].type === "f32") view.setFloat32(offset, value, true);
      else if (args[number].type === "u32") view.setUint32(offset, value, true);
      else view.setInt32(offset, value, true);
    }
    const bytes = new Uint8Array(view.buffer);
    if (this.fresh || bytes.some((b, i) => b !== this.packed[i])) {
      model.device.queue.writeBuffer(this.uniform, 0, bytes);
      this.packed = bytes;
      this.fresh = false;
    }
  }

  /** Return the bind groups of every dispatch for the memory as it is now. */
  plan() {
    const { device, kernels, states } = this.model;
    const used = (this.used ??= [...new Set(this.description.memory.filter((p) => p.state !== undefined).map((p) => p.state))]);
    const swapped = this.description.updates.map(([, entry]) => this.own.get(entry).webtorchId);
    const key = used.map((s) => states[s].buffer.webtorchId).join() + "/" + swapped.join();
    let groups = this.plans.get(key);
    if (groups) return groups;
    groups = this.description.steps.map((step) => {
      if (step.copy) return null;
      const resources = step.bind.map(([entry, size]) => ({ buffer: this.buffer(entry), size }));
      if (step.uniform) resources.push({ buffer: this.uniform, offset: step.uniform[0], size: step.uniform[1] });
      if (step.status) resources.push({ buffer: this.status, size: 8 });
      const entries = resources.map((resource, binding) => ({ binding, resource }));
      return device.createBindGroup({ layout: kernels[step.kernel].group, entries });
    });
    this.plans.set(key, groups);
    if (this.plans.size > PLANS) this.plans.delete(this.plans.keys().next().value);
    return groups;
  }

  call(inputs = {}, { read = true } = {}) {
    const { model, description } = this;
    model.check();
    const known = new Set([...description.arguments, ...description.numbers].map((a) => a.name));
    for (const name of Object.keys(inputs)) {
      if (!known.has(name)) throw new WebtorchError(`${this.name}: there is no input ${name}; the inputs are ${[...known].join(", ") || "none"}`);
    }
    for (const { name } of description.numbers) {
      if (name in inputs && typeof inputs[name] !== "number") throw new WebtorchError(`${this.name}: ${name} is a number, got ${typeof inputs[name]}`);
    }
    // Everything is checked before anything changes.
    const encoded = description.arguments.map((a) => encode(inputs[a.name], a.shape, a.dtype, `${this.name}: input ${a.name}`));
    const { queue } = model.device;
    encoded.forEach((bytes, i) => bytes.byteLength && queue.writeBuffer(this.arguments[i], 0, bytes));
    this.packArguments(inputs);
    const { encoder, staging } = this.encode(read);
    queue.submit([encoder.finish()]);
    model.random = BigInt.asUintN(64, model.random + BigInt(description.draws));
    for (const [state, entry] of description.updates) {
      const before = model.states[state].buffer;
      model.states[state].buffer = this.own.get(entry);
      this.own.set(entry, before);
    }
    return read ? this.read(staging) : Promise.resolve({});
  }

  encode(read) {
    const { device, kernels } = this.model;
    const { steps, returns } = this.description;
    const groups = this.plan();
    const encoder = device.createCommandEncoder({ label: this.name });
    let pass = null;
    let last = null;
    steps.forEach((step, i) => {
      if (step.copy) {
        pass?.end();
        pass = null;
        encoder.copyBufferToBuffer(this.buffer(step.copy[0]), 0, this.buffer(step.copy[1]), 0, step.copy[2]);
        return;
      }
      if (!pass) {
        pass = encoder.beginComputePass();
        last = null;
      }
      const { pipeline } = kernels[step.kernel];
      if (pipeline !== last) pass.setPipeline((last = pipeline));
      pass.setBindGroup(0, groups[i]);
      pass.dispatchWorkgroups(...step.grid);
    });
    pass?.end();
    let staging = null;
    const total = returns.reduce((sum, r) => sum + r.bytes, 0) + (this.status ? 8 : 0);
    if (read && total) {
      const { GPUBufferUsage: usage } = globalThis;
      staging = this.staging.pop() ?? device.createBuffer({ size: total, usage: usage.MAP_READ | usage.COPY_DST });
      let at = 0;
      for (const { entry, bytes } of returns) {
        if (bytes) encoder.copyBufferToBuffer(this.buffer(entry), 0, staging, at, bytes);
        at += bytes;
      }
      if (this.status) {
        encoder.copyBufferToBuffer(this.status, 0, staging, at, 8);
        encoder.clearBuffer(this.status, 0, 8);
      }
    }
    return { encoder, staging };
  }

  async read(staging) {
    const { returns, constants, sites } = this.description;
    const out = { ...constants };
    let bytes = new ArrayBuffer(0);
    if (staging) {
      bytes = await this.model.download(staging);
      this.staging.push(staging);
    }
    let at = 0;
    for (const entry of returns) {
      out[entry.name] = { data: decode(bytes, at, entry), shape: entry.shape, dtype: entry.dtype };
      at += entry.bytes;
    }
    if (this.status) {
      const [site, value] = new Int32Array(bytes, at, 2);
      if (site > 0) {
        const [op, dim, size, line] = sites[site - 1] ?? ["an operation", 0, "?", ""];
        throw new WebtorchError(`${op}: index ${value} is out of bounds for dimension ${dim} with size ${size}${line ? ` (${line})` : ""}`);
      }
    }
    this.model.check();
    return out;
  }
}

let nextBuffer = 1;

/** A loaded export: its functions by name, its settings, its state. */
export class Model {
  constructor(device, program) {
    this.device = device;
    this.deviceName = device.webtorchName ?? nameOf(device.adapterInfo ?? {});
    this.program = program;
    this.title = program.title;
    this.settings = Object.fromEntries(Object.entries(program.settings).map(([name, value]) => [name, Number(value)]));
    this.random = BigInt(program.random);
    this.failure = null;
    this.functions = {};
    this.states = [];
    device.lost.then((info) => {
      if (info.reason === "destroyed") this.failure ??= new WebtorchError("The graphics device was closed by the page.");
      else this.failure ??= new WebtorchError(`The graphics device was lost (${info.message || "the driver gave no reason"}). Reload the page to go on; what was trained since the last download is gone.`);
    });
    device.addEventListener("uncapturederror", (event) => {
      this.failure ??= new WebtorchError(`The graphics device reported: ${event.error.message}`);
    });
  }

  /** @internal */
  async open(weights) {
    const { device, program } = this;
    this.kernels = await Promise.all(program.kernels.map((kernel) => kernelOf(device, kernel)));
    device.pushErrorScope("out-of-memory");
    const number = (buffer) => Object.assign(buffer, { webtorchId: nextBuffer++ });
    const { GPUBufferUsage: usage } = globalThis;
    for (const { name, bytes } of program.states) {
      const buffer = number(device.createBuffer({ size: bytes, usage: usage.STORAGE | usage.COPY_SRC | usage.COPY_DST, label: name }));
      this.states.push({ name, buffer });
    }
    for (const [name, description] of Object.entries(program.functions)) {
      const callable = (this.functions[name] = new Program(this, name, description));
      callable.allocate();
      for (const buffer of callable.own.values()) number(buffer);
      this[name] = async (inputs, options) => callable.call(inputs, options);
    }
    const short = await device.popErrorScope();
    if (short) throw new WebtorchError(`There is not enough graphics memory for the program: ${short.message}`);
    this.write(weights, "weights.safetensors");
    return this;
  }

  /** @internal Throw what the device reported since the last call. */
  check() {
    if (this.failure) throw this.failure;
  }

  /** @internal */
  write(tensors, what) {
    // All are checked before any is written.
    const contents = this.program.states.map(({ name, dtype, shape }) => {
      const tensor = tensors[name];
      if (!tensor) throw new WebtorchError(`${what}: the tensor ${name} is missing`);
      if (tensor.dtype !== dtype || elementsOf(tensor.shape) !== elementsOf(shape)) {
        throw new WebtorchError(`${what}: ${name} is ${tensor.dtype}${shown(tensor.shape)}, the program wants ${dtype}${shown(shape)}`);
      }
      return toDevice(tensor, `${what}: ${name}`);
    });
    contents.forEach((bytes, i) => bytes.length && this.device.queue.writeBuffer(this.states[i].buffer, 0, bytes));
  }

  /** @internal */
  async download(staging) {
    try {
      await staging.mapAsync(GPUMapMode.READ);
    } catch (error) {
      this.check();
      throw new WebtorchError(`Reading from the graphics device failed: ${error.message}`, { cause: error });
    }
    const bytes = staging.getMappedRange().slice(0);
    staging.unmap();
    return bytes;
  }

  /** Change a setting, such as the learning rate. With several parameter groups, "lr" changes all of them. */
  set(name, value) {
    const names = name in this.settings ? [name] : Object.keys(this.settings).filter((key) => key.endsWith(`.${name}`));
    if (!names.length) throw new WebtorchError(`set: there is no setting ${name}; the settings are ${Object.keys(this.settings).join(", ") || "none"}`);
    if (typeof value !== "number" || Number.isNaN(value)) throw new WebtorchError(`set: ${name} is a number, got ${value}`);
    for (const key of names) this.settings[key] = value;
  }

  /** Return the value of a setting. */
  get(name) {
    return this.settings[name] ?? this.settings[Object.keys(this.settings).find((key) => key.endsWith(`.${name}`))];
  }

  /** Return parameters and optimizer state, as they are now, as a safetensors file. */
  async state() {
    this.check();
    const { device, program } = this;
    const { GPUBufferUsage: usage } = globalThis;
    const total = program.states.reduce((sum, s) => sum + s.bytes, 0);
    if (!total) return writeSafetensors({});
    const staging = device.createBuffer({ size: total, usage: usage.MAP_READ | usage.COPY_DST });
    const encoder = device.createCommandEncoder();
    let at = 0;
    program.states.forEach(({ bytes }, i) => {
      encoder.copyBufferToBuffer(this.states[i].buffer, 0, staging, at, bytes);
      at += bytes;
    });
    device.queue.submit([encoder.finish()]);
    const all = await this.download(staging);
    staging.destroy();
    const tensors = {};
    at = 0;
    for (const { name, dtype, shape, bytes } of program.states) {
      tensors[name] = { dtype, shape, bytes: toFile(new Uint8Array(all, at, bytes), dtype, elementsOf(shape)) };
      at += bytes;
    }
    return writeSafetensors(tensors);
  }

  /** Take parameters and optimizer state from a safetensors file (ArrayBuffer or Uint8Array). */
  loadState(file) {
    this.check();
    const buffer = file instanceof ArrayBuffer ? file : file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength);
    this.write(readSafetensors(buffer, "loadState"), "loadState");
  }

  /** Give the device's memory back. The model cannot be used afterwards. */
  destroy() {
    this.failure = new WebtorchError("The model was destroyed.");
    this.device.destroy();
  }
}

/** Open a program that is already in memory: the parsed program.json, and tensors as `readSafetensors` returns them. */
export async function open(program, weights = {}, { device = null } = {}) {
  if (program?.format !== FORMAT) throw new WebtorchError("program.json: this is not a program that webtorch exported");
  if (program.version !== VERSION) throw new WebtorchError(`program.json: it has version ${program.version}, this runtime.js reads version ${VERSION}: export again`);
  return new Model(device ?? (await requestDevice(program)), program).open(weights);
}

/** Fetch a file of an export. */
export async function fetchFile(base, name) {
  let response;
  try {
    // Ask the server each time: a program and weights of two exports do not fit each other.
    response = await fetch(new URL(name, base), { cache: "no-cache" });
  } catch (error) {
    throw new WebtorchError(`${name}: it could not be fetched (${error.message}). A page opened as a file cannot fetch: use a server, such as python -m http.server`, { cause: error });
  }
  if (!response.ok) throw new WebtorchError(`${name}: the server answered ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

/** Load an exported folder: `const m = await load("./")`. */
export async function load(folder = "./", options = {}) {
  const base = new URL(folder.endsWith("/") ? folder : `${folder}/`, globalThis.location?.href ?? import.meta.url);
  const [text, weights] = await Promise.all([fetchFile(base, "program.json"), fetchFile(base, "weights.safetensors")]);
  let program;
  try {
    program = JSON.parse(new TextDecoder().decode(text));
  } catch (error) {
    throw new WebtorchError(`program.json: the file is damaged or incomplete (${error.message})`, { cause: error });
  }
  return open(program, readSafetensors(weights, "weights.safetensors"), options);
}
